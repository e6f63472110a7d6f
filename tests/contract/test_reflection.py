"""Debugging by reflection: a stranger with grpcurl needs no file of ours."""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from inferwire.v1 import error_pb2, generation_pb2, inference_pb2, model_pb2, operations_pb2

from tests.serving import MODEL, Serving, request, serving

INFERENCE = "inferwire.v1.InferenceService"
SERVICES = [INFERENCE, "inferwire.v1.ModelService", "inferwire.v1.OperationsService"]
STANDARD = ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
FILES = (error_pb2, generation_pb2, inference_pb2, model_pb2, operations_pb2)
README = Path(__file__).parents[2] / "README.md"

pytestmark = pytest.mark.case("H24")


class Grpcurl:
    """The real tool, against one server."""

    def __init__(self, binary: Path, server: Serving) -> None:
        self.binary = binary
        self.server = server

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        process = await asyncio.create_subprocess_exec(
            str(self.binary), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def text(self, *arguments: str) -> str:
        status, out, err = await self.run("-plaintext", *arguments)
        assert status == 0, err
        return out

    async def call(self, method: str, data: dict[str, Any]) -> list[dict[str, Any]]:
        """The JSON objects of the answer."""
        out = await self.text("-d", json.dumps(data), self.server.address, method)
        return list(json_objects(out))


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        yield value


def symbols() -> set[str]:
    """Every message, enum and service of the contract."""
    tops = ("message_types_by_name", "enum_types_by_name", "services_by_name")
    return {each.full_name for file in FILES for top in tops for each in getattr(file.DESCRIPTOR, top).values()}


async def test_every_service_is_listed(grpcurl: Path) -> None:
    async with serving() as server:
        listed = (await Grpcurl(grpcurl, server).text(server.address, "list")).split()
    assert sorted(listed) == sorted(SERVICES + STANDARD)


async def test_every_symbol_resolves_with_all_that_it_needs(grpcurl: Path, tmp_path: Path) -> None:
    pool = descriptor_pool.DescriptorPool()
    saved = tmp_path / "files.protoset"
    async with serving() as server:
        tool = Grpcurl(grpcurl, server)
        for symbol in (*SERVICES, *STANDARD, "inferwire.v1.ErrorReason"):
            described = await tool.text("-protoset-out", str(saved), server.address, "describe", symbol)
            assert symbol.rpartition(".")[2] in described
            for file in descriptor_pb2.FileDescriptorSet.FromString(saved.read_bytes()).file:
                pool.Add(file)
            saved.unlink()
    for name in symbols():
        assert find(pool, name).full_name == name


def find(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    file = pool.FindFileContainingSymbol(name)
    short = name.rpartition(".")[2]
    tops = (file.message_types_by_name, file.enum_types_by_name, file.services_by_name)
    return next(top[short] for top in tops if short in top)


async def test_a_model_and_a_prompt_are_a_complete_call(grpcurl: Path) -> None:
    async with serving() as server:
        (answer,) = await Grpcurl(grpcurl, server).call(f"{INFERENCE}/Generate", {"model": MODEL, "prompt": "hi"})
    assert answer["outputs"][0]["finished"]["reason"] == "FINISH_REASON_LENGTH"
    assert answer["usage"]["output_tokens"] == 512
    assert answer["timings"]["total_time"].endswith("s")
    assert len(base64.b64decode(answer["started"]["prompt_digest"])) == 32


async def test_numbers_may_be_strings_and_names_may_be_snake_case(grpcurl: Path) -> None:
    data = {"model": MODEL, "prompt": "hi", "max_output_tokens": "5", "sampling": {"seed": "42", "temperature": "0.5"}}
    async with serving() as server:
        (answer,) = await Grpcurl(grpcurl, server).call(f"{INFERENCE}/Generate", data)
    assert answer["usage"]["output_tokens"] == 5
    assert answer["started"]["seed"] == 42


def test_no_number_of_the_contract_turns_into_a_string_in_json() -> None:
    messages = [message for file in FILES for message in file.DESCRIPTOR.message_types_by_name.values()]
    wide = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
    assert [field.full_name for message in messages for field in message.fields if field.cpp_type in wide] == []


async def test_an_int64_of_a_standard_type_comes_as_a_string(grpcurl: Path) -> None:
    async with serving() as server:
        (status,) = await Grpcurl(grpcurl, server).call("inferwire.v1.OperationsService/GetServerStatus", {})
    assert isinstance(status["started_at"], str)


async def test_a_wrong_field_name_is_refused_by_the_tool_by_its_name(grpcurl: Path) -> None:
    async with serving() as server:
        tool = Grpcurl(grpcurl, server)
        arguments = ("-plaintext", "-d", '{"model": "m", "promt": "hi"}', server.address, f"{INFERENCE}/Generate")
        status, _, err = await tool.run(*arguments)
    assert status != 0
    assert "promt" in err


async def test_an_unknown_field_on_the_wire_is_ignored() -> None:
    message = request(sampling={"temperature": 0.0})
    varint_9999_is_1 = b"\xf8\xf0\x04\x01"
    async with serving() as server:
        call: Any = server.channel.unary_unary(
            f"/{INFERENCE}/Generate", response_deserializer=generation_pb2.GenerateResponse.FromString
        )
        extended = await call(message.SerializeToString() + varint_9999_is_1)
        assert extended.outputs == (await server.inference.Generate(message)).outputs


async def test_a_stream_prints_one_json_object_for_each_event(grpcurl: Path) -> None:
    async with serving() as server:
        data = {"model": MODEL, "prompt": "hi", "max_output_tokens": 12}
        events = await Grpcurl(grpcurl, server).call(f"{INFERENCE}/StreamGenerate", data)
    kinds = [next(iter(event)) for event in events]
    assert (kinds[0], kinds[-2:]) == ("started", ["finished", "completed"])
    deltas = [event["delta"] for event in events[1:-2]]
    assert sum(delta["token_count"] for delta in deltas) == 12
    offsets = [delta.get("token_offset", 0) for delta in deltas]
    assert offsets == sorted(set(offsets))


async def test_an_error_shows_its_reason_and_its_field(grpcurl: Path) -> None:
    async with serving() as server:
        data = json.dumps({"model": MODEL, "prompt": "hi", "sampling": {"topP": 7}})
        status, _, err = await Grpcurl(grpcurl, server).run(
            "-plaintext", "-d", data, server.address, f"{INFERENCE}/Generate"
        )
    assert status != 0
    assert "InvalidArgument" in err
    assert "sampling.top_p" in err


def recipes() -> list[str]:
    """The grpcurl commands of the README."""
    return [line for line in README.read_text().splitlines() if line.startswith("grpcurl ")]


@pytest.mark.parametrize("recipe", recipes())
async def test_a_recipe_of_the_readme_works_as_pasted(recipe: str, grpcurl: Path) -> None:
    async with serving() as server:
        here = recipe.replace("127.0.0.1:50051", server.address).replace("smollm2-135m-instruct", MODEL)
        status, out, err = await Grpcurl(grpcurl, server).run(*shlex.split(here)[1:])
    assert (status, err) == (0, "")
    assert out


def test_the_readme_has_recipes() -> None:
    assert len(recipes()) >= 3
