"""The scripted model's files: a byte tokenizer that the tokenizers library reads, and a ChatML template."""

from __future__ import annotations

from pathlib import Path

import jinja2
import jinja2.sandbox
import pytest
import tokenizers
from inferwire_server.engines.scripted import PlanFileError, read_plans, scripted_model_facts, write_scripted_model
from inferwire_server.engines.scripted.model import CHAT_TEMPLATE, tokenizer_json
from inferwire_server.engines.scripted.plans import Die, Echo, Fail, Freeze, Refuse
from inferwire_server.engines.scripted.vocabulary import BEGINNING_ID, CONTROL_TOKENS, MESSAGE_END_ID, VOCABULARY_SIZE

TEXTS = [
    "plain",
    "cafe\u0301 caf\u00e9",
    "\U0001f469\u200d\U0001f467",
    "a\u0000b",
    "\ufffd",
    "  two\n\n\tx ",
    "龜\U00020bb7",
    "\u202e",
]


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json())


class TestTokenizer:
    @pytest.mark.parametrize("text", TEXTS, ids=ascii)
    def test_a_texts_ids_are_its_bytes(self, tokenizer: tokenizers.Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert bytes(ids) == text.encode()
        assert tokenizer.decode(ids) == text

    def test_a_prompt_begins_with_one_beginning_token(self, tokenizer: tokenizers.Tokenizer) -> None:
        assert tokenizer.encode("hi").ids == [BEGINNING_ID, *b"hi"]

    def test_knows_its_control_tokens(self, tokenizer: tokenizers.Tokenizer) -> None:
        assert {name: tokenizer.token_to_id(name) for name in CONTROL_TOKENS} == CONTROL_TOKENS
        assert tokenizer.get_vocab_size(with_added_tokens=True) == VOCABULARY_SIZE

    def test_control_text_can_be_kept_as_text(self, tokenizer: tokenizers.Tokenizer) -> None:
        assert MESSAGE_END_ID in tokenizer.encode("a<|im_end|>").ids
        careful = tokenizers.Tokenizer.from_str(tokenizer_json())
        careful.encode_special_tokens = True
        assert bytes(careful.encode("a<|im_end|>", add_special_tokens=False).ids) == b"a<|im_end|>"


class TestChat:
    def test_renders_chatml(self) -> None:
        template = jinja2.sandbox.ImmutableSandboxedEnvironment(autoescape=False).from_string(CHAT_TEMPLATE)
        messages = [{"role": "user", "content": "hi <b>"}]
        expected = "<|bos|><|im_start|>user\nhi <b><|im_end|>\n"
        assert template.render(messages=messages) == expected
        assert template.render(messages=messages, add_generation_prompt=True) == expected + "<|im_start|>assistant\n"


class TestFiles:
    def test_are_what_the_facts_say(self, tmp_path: Path) -> None:
        files = write_scripted_model(tmp_path / "scripted")
        assert files.tokenizer.read_text(encoding="utf-8") == tokenizer_json()
        assert files.chat_template.read_text(encoding="utf-8") == CHAT_TEMPLATE
        facts = scripted_model_facts(512)
        assert facts.qualified_name == "scripted@1"
        assert facts.vocabulary_size == VOCABULARY_SIZE


PLANS = """
[default]
mean_output_tokens = 20

[[when]]
prompt_contains = "again"
echo_after = "Say again: "

[[when]]
prompt_contains = "break"
reply = "half"
token_delay_s = 0.5
mishap = { kind = "fail", error = "internal", reason = "secret /srv/path", after = 2 }
"""


class TestPlanFile:
    def test_gives_plans_by_rule(self, tmp_path: Path) -> None:
        path = tmp_path / "plans.toml"
        path.write_text(PLANS, encoding="utf-8")
        plans = read_plans(path)
        assert plans("hello").mean_output_tokens == 20
        assert plans("again").reply == Echo("Say again: ")
        broken = plans("break")
        assert (broken.reply, broken.token_delay_s) == ("half", 0.5)
        assert isinstance(broken.mishap, Fail)
        assert isinstance(broken.mishap.error(), ValueError)

    @pytest.mark.parametrize(("kind", "expected"), [("refuse", Refuse), ("die", Die), ("freeze", Freeze)])
    def test_knows_every_mishap_and_reads_json_too(self, tmp_path: Path, kind: str, expected: type) -> None:
        path = tmp_path / "plans.json"
        path.write_text(f'{{"default": {{"mishap": {{"kind": "{kind}"}}}}}}', encoding="utf-8")
        assert isinstance(read_plans(path)("x").mishap, expected)

    @pytest.mark.parametrize(
        ("content", "place"),
        [
            ("default = 3", "default"),
            ("[default]\nmean = 3", "default.mean"),
            ("[[when]]\nreply = 'a'", "when.0.prompt_contains"),
            ("[default]\nreply_token_ids = [999]", "reply_token_ids"),
            ("[default]\nmishap = {kind = 'explode'}", "mishap.kind"),
            ("not toml", "plans.toml"),
        ],
    )
    def test_a_bad_file_is_refused_with_the_place(self, tmp_path: Path, content: str, place: str) -> None:
        path = tmp_path / "plans.toml"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(PlanFileError, match=place):
            read_plans(path)

    def test_a_missing_file_is_refused_with_its_name(self, tmp_path: Path) -> None:
        with pytest.raises(PlanFileError, match=r"absent\.toml"):
            read_plans(tmp_path / "absent.toml")
