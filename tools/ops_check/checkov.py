"""checkov finds nothing in recipes and manifests, but for what is skipped here with its reason."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.ops_check.pods import pods_of
from tools.ops_check.programs import complaints, run
from tools.ops_check.rendering import rendered

SKIPPED = {
    "CKV_DOCKER_7": "base images are arguments, which it does not look into; their defaults have tags",
    "CKV_K8S_11": "a limit on CPU time stalls every stream of a server for the rest of the period",
    "CKV_K8S_15": "an image named by digest cannot change, so it need not be asked for at each start",
    "CKV_K8S_22": "containment.py holds it, with the one exception of containers that have a GPU",
    "CKV_K8S_43": "digests are arguments of a release; tools/release_manifests.py refuses to go without",
}
_PROGRAM = "../../.venv-checkov/bin/checkov"  # beside the environment whose interpreter runs this


def problems(root: Path) -> list[str]:
    """checkov's findings: check, object, what it asks for."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for recipe in (root / "docker").glob("Dockerfile*"):
            shutil.copy(recipe, folder)
        for each in rendered(root):
            text = yaml.safe_dump_all([*each.objects, *_single_pods(each)])
            (folder / f"{each.name.replace('/', '-')}.yaml").write_text(text)
        skips = ",".join(SKIPPED)
        options = ["--framework", "kubernetes", "dockerfile", "--compact", "--quiet", "--output", "json"]
        done = run(_PROGRAM, "--directory", folder, *options, "--skip-check", skips, "--skip-download", folder=folder)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            return complaints(done) or [f"checkov said nothing that can be read: {done.stdout[:200]}"]
    return list(_findings(report if isinstance(report, list) else [report]))


def _findings(reports: list[dict[str, Any]]) -> Iterator[str]:
    for report in reports:
        summary = report.get("summary", report)
        if not summary["resource_count"] or summary["parsing_errors"]:
            yield f"checkov could not read everything: {summary}"
            continue
        for check in report["results"]["failed_checks"]:
            yield f"{Path(check['file_path']).name}: {check['resource']}: {check['check_id']}: {check['check_name']}"


def _single_pods(each: Any) -> Iterator[dict[str, Any]]:
    """Pods of kinds that checkov does not know."""
    for number, pods in enumerate(pods_of(each)):
        if "LeaderWorkerSet" in pods.where:
            metadata = {"name": f"of-a-group-{number}", "namespace": "inferwire", "labels": pods.labels}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pods.spec}
