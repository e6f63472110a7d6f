"""The adapter touches only recorded names, and the stand-in has exactly these."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest
from inferwire_server.engines.tensorrt_llm import installation, surface
from inferwire_server.engines.tensorrt_llm.options import Options

from tests.engines.tensorrt_llm.recorded_names import differences, members_of, parameters_of, recorded

_ADAPTER = Path(installation.__file__).parent
_TREES = {file.name: ast.parse(file.read_text()) for file in sorted(_ADAPTER.glob("*.py"))}
_CONFIGURATIONS = {
    "kv_cache_config": ["KvCacheConfig"],
    "scheduler_config": ["SchedulerConfig"],
    "cuda_graph_config": ["CudaGraphConfig"],
    "speculative_config": ["NGramDecodingConfig", "EagleDecodingConfig", "DraftTargetDecodingConfig"],
}


@pytest.mark.usefixtures("standin")
def test_the_stand_in_is_exactly_what_is_recorded() -> None:
    assert [str(difference) for difference in differences(recorded(), is_whole=True)] == []


@pytest.mark.usefixtures("standin")
def test_a_package_that_differs_is_found_out() -> None:
    record = recorded()
    llm = record["classes"]["tensorrt_llm.llmapi.LLM"]
    llm["methods"]["generate_async"][4]["default"] = True
    llm["methods"]["get_stats_async"].append({"name": "window", "kind": "KEYWORD_ONLY", "default": 1})
    record["classes"]["tensorrt_llm.executor.utils.RequestError"]["bases"] = ["ValueError"]
    record["classes"]["tensorrt_llm.llmapi.Gone"] = {"confidence": "probable"}

    assert {str(difference) for difference in differences(record, is_whole=False)} >= {
        "tensorrt_llm.llmapi.LLM.generate_async(streaming): defaults to False, not True (recorded as certain)",
        "tensorrt_llm.llmapi.LLM.get_stats_async(window): is absent (recorded as certain)",
        "tensorrt_llm.executor.utils.RequestError: has no base ValueError (recorded as certain)",
        "tensorrt_llm.llmapi.Gone: is absent (recorded as probable)",
    }


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        (surface.Llm, "LLM"),
        (surface.RequestOutput, "RequestOutput"),
        (surface.CompletionOutput, "CompletionOutput"),
        (surface.Logprob, "Logprob"),
    ],
)
def test_every_member_of_the_typed_surface_is_recorded(protocol: type, name: str) -> None:
    used = {member for member in vars(protocol) if not member.startswith("_") or member == "__aiter__"}
    assert used - members_of(name) == set()


def test_nothing_escapes_the_typed_surface() -> None:
    """mypy holds the adapter to `surface.py`; `Any` would let go of it."""
    users = {name for name, tree in _TREES.items() if "Any" in _imported_from(tree, "typing")}
    assert users == {"options.py"}


def test_names_of_the_package_are_looked_up_in_one_place_and_are_recorded() -> None:
    classes = {name.rpartition(".")[2] for name in recorded()["classes"]}
    looked_up = {
        node.attr
        for node in ast.walk(_TREES["installation.py"])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("api", "errors")
    }
    looked_up |= set(installation._SPECULATIVE_CONFIGS.values())
    assert looked_up - classes == set()
    assert {name for name, tree in _TREES.items() if "importlib" in _imported(tree)} == {"installation.py"}


def test_private_and_newer_names_are_only_probed_and_are_recorded_as_such() -> None:
    allowed = {*recorded()["probes"]["names"], *recorded()["probes"]["alternatives"]}
    probed = {
        node.args[1].value
        for tree in _TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) == "getattr" and isinstance(node.args[1], ast.Constant)
    }
    probed |= {text for text in _texts(_TREES["vital_signs.py"]) if text.isidentifier()}
    assert probed - allowed == set()
    assert {"_executor", "is_shutdown", "mpi_futures", "_check_health", "_fatal_error"} <= probed


def test_every_keyword_of_a_request_is_recorded() -> None:
    method = recorded()["classes"]["tensorrt_llm.llmapi.LLM"]["methods"]["generate_async"]
    known = {parameter["name"] for parameter in method}
    assert _keys_in("request_arguments.py", "build") - {"prompt_token_ids"} <= known
    assert _keys_in("request_arguments.py", "_sampling") <= parameters_of("SamplingParams")
    assert _keys_in("request_arguments.py", "_draws") <= parameters_of("SamplingParams")
    assert _keys_in("grammars.py", "guide") <= parameters_of("GuidedDecodingParams")


def test_every_keyword_of_the_constructor_is_recorded() -> None:
    known = parameters_of("LLM") | parameters_of("TorchLlmArgs")
    assert _keys_in("llm_arguments.py", "llm_arguments") <= known


def test_every_option_maps_to_recorded_names() -> None:
    known = parameters_of("LLM") | parameters_of("TorchLlmArgs")
    alternatives = set(recorded()["probes"]["alternatives"])
    for option in dataclasses.fields(Options):
        outer, _, inner = option.metadata["maps_to"].partition(".")
        assert not outer or outer in known, option.name
        if inner:
            inside = set().union(*(parameters_of(name) for name in _CONFIGURATIONS[outer]))
            assert inner in inside | alternatives, option.name


def test_requests_are_submitted_with_keywords_alone() -> None:
    calls = [
        node
        for tree in _TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "generate_async"
    ]
    assert [len(call.args) for call in calls] == [0]
    assert inspect.signature(surface.Llm.generate_async).parameters.keys() == {"self", "arguments"}


def _imported(tree: ast.Module) -> set[str]:
    return {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


def _imported_from(tree: ast.Module, module: str) -> set[str]:
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _texts(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _keys_in(file: str, function: str) -> set[str]:
    (found,) = [node for node in ast.walk(_TREES[file]) if isinstance(node, ast.FunctionDef) and node.name == function]
    keys = {
        key.value
        for node in ast.walk(found)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assigned = {
        node.slice.value
        for node in ast.walk(found)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant)
    }
    return {str(key) for key in keys | assigned}
