"""The recording rules and alerts of docker/prometheus as a PrometheusRule, for clusters with a Prometheus operator.

python -m tools.prometheus_rule >k8s/components/monitoring/prometheusrule.yaml

Kustomize takes no files from outside its folder, so the manifest is generated; `make ops-check` finds it stale.
"""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = "k8s/components/monitoring/prometheusrule.yaml"
_SOURCES = ("docker/prometheus/rules.yml", "docker/prometheus/alerts.yml")


def rule_manifest(root: Path = ROOT) -> str:
    """The manifest's text."""
    groups = [group for source in _SOURCES for group in yaml.safe_load((root / source).read_text())["groups"]]
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "inferwire"},
        "spec": {"groups": groups},
    }
    return "# Generated from docker/prometheus by tools/prometheus_rule.py.\n" + yaml.dump(
        manifest, Dumper=_Indented, sort_keys=False, width=100
    )


class _Indented(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Lists are indented, as yamllint asks."""
        super().increase_indent(flow, False)


if __name__ == "__main__":
    print(rule_manifest(), end="")
