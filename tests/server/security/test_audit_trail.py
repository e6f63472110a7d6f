"""Audit records: nobody waits for them, none is lost in silence, and none outlives its retention."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from inferwire_server.app.auditing import open_trail
from inferwire_server.cli import inferwire
from inferwire_server.domain.request import Conversation, Message
from inferwire_server.security.audit import AuditTrail, Content
from inferwire_server.security.audit_files import AuditFiles, purge
from inferwire_server.security.tenants import ContentPolicy
from inferwire_server.settings import Settings, SettingsError
from structlog.testing import capture_logs

from tests.polling import until
from tests.server.security.audit_reading import Counts, files_of, records
from tests.server.security.quota_driving import at

_WRITE_UNTIL_A_LIMIT = """
import pathlib, resource, sys
from inferwire_server.security.audit_files import AuditFiles

files = AuditFiles(pathlib.Path(sys.argv[1]), retention_days=30)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
files.write(b'{"a":1}\\n', 0.0)
try:
    files.write(b'{"a":2}\\n' * 10, 0.0)
except OSError:
    sys.exit(0)
sys.exit("the limit was not felt")
"""


class Stuck(AuditFiles):
    """A disk that takes nothing until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, retention_days=30)
        self.is_asked, self.go = threading.Event(), threading.Event()

    def write(self, lines: bytes, wall: float) -> None:
        self.is_asked.set()
        assert self.go.wait(20)
        super().write(lines, wall)


class Full(AuditFiles):
    """A disk that is full until there is room."""

    has_room = False

    def write(self, lines: bytes, wall: float) -> None:
        if not self.has_room:
            raise OSError(28, "No space left on device")
        super().write(lines, wall)


def days(folder: Path) -> set[str]:
    return {path.name[6:14] for path in folder.iterdir()}


def test_what_was_put_is_written_line_by_line_in_order(tmp_path: Path) -> None:
    counts = Counts()
    trail = AuditTrail(files_of(tmp_path), counts)
    for number in range(1200):
        trail.put({"number": number, "name": "line\nbreak \u2028 ä"})
    trail.close()
    found = records(tmp_path)
    assert [record["number"] for record in found] == list(range(1200))
    assert all(datetime.fromisoformat(record["time"]).utcoffset() == timedelta(0) for record in found)
    assert counts.num_written == 1200


def test_a_disk_that_hangs_stops_nobody_and_what_is_too_much_is_counted_and_told(tmp_path: Path) -> None:
    counts, files = Counts(), Stuck(tmp_path)
    trail = AuditTrail(files, counts, most_waiting=100)
    with capture_logs() as logs:
        trail.put({"number": -1})
        assert files.is_asked.wait(20)
        for number in range(250):
            trail.put({"number": number})
        assert counts.num_overflowed == 150
        files.go.set()
        trail.close()
    assert [record["number"] for record in records(tmp_path)] == [-1, *range(100)]
    assert [(line["event"], line["count"]) for line in logs] == [("audit records lost", 150)]


def test_what_a_hanging_disk_did_not_take_before_the_end_is_told(tmp_path: Path) -> None:
    files = Stuck(tmp_path)
    trail = AuditTrail(files, Counts())
    with capture_logs() as logs:
        trail.put({})
        assert files.is_asked.wait(20)
        trail.put({})
        trail.close(within_s=0.1)
    files.go.set()
    assert [line["event"] for line in logs] == ["audit records lost"]


def test_contents_that_wait_are_bounded_too(tmp_path: Path) -> None:
    counts, files = Counts(), Stuck(tmp_path)
    trail = AuditTrail(files, counts, most_waiting_characters=1000)
    content = Content(ContentPolicy(keeps_prompt=True), "x" * 400, ())
    trail.put({}, content)
    assert files.is_asked.wait(20)
    for _ in range(5):
        trail.put({}, content)
    trail.put({})
    files.go.set()
    trail.close()
    assert (counts.num_written, counts.num_overflowed) == (4, 3)


async def test_what_a_full_disk_loses_is_counted_and_told_once_until_there_is_room(tmp_path: Path) -> None:
    counts, files = Counts(), Full(tmp_path, retention_days=30)
    with capture_logs() as logs:
        trail = AuditTrail(files, counts)
        for _ in range(3):
            trail.put({"lost": True})
        await until(lambda: counts.num_failed == 3)
        files.has_room = True
        trail.put({"lost": False})
        trail.close()
    assert [record["lost"] for record in records(tmp_path)] == [False]
    assert [line["event"] for line in logs] == ["audit records lost", "audit records are written again"]
    assert logs[0]["reason"] == "No space left on device"


def test_a_write_that_fails_half_way_leaves_no_half_line(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _WRITE_UNTIL_A_LIMIT, str(tmp_path)], timeout=50, check=True)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b'{"a":1}\n'


def test_a_folder_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    files = files_of(folder, largest_bytes=1)
    files.write(b"{}\n", 0.0)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    files.write(b"{}\n", 0.0)
    assert len(list(folder.iterdir())) == 1


def test_only_their_owner_can_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    files = files_of(folder)
    files.write(b"{}\n", 0.0)
    (path,) = folder.iterdir()
    assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(path.stat().st_mode)) == (0o700, 0o600)


def test_records_do_not_go_into_a_file_that_was_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    files = files_of(folder)
    files.write(b'{"a":1}\n', 0.0)
    shutil.rmtree(folder)

    files.write(b'{"a":2}\n', 0.0)
    assert records(folder) == [{"a": 2}]

    shutil.rmtree(folder)
    folder.write_text("no folder any more")
    with pytest.raises(OSError, match="exists"):
        files.write(b'{"a":3}\n', 0.0)


def test_a_file_ends_with_its_day_and_when_it_is_large(tmp_path: Path) -> None:
    files = files_of(tmp_path, largest_bytes=30)
    for hour in range(48):
        files.write(b'{"some": "record"}\n', at(2026, 12, 1) + hour * 3600.0)
    assert days(tmp_path) == {"20261201", "20261202"}
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 30 + 19
    assert len(records(tmp_path)) == 48


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    first, second = files_of(tmp_path), files_of(tmp_path)
    for files in (first, second, first):
        files.write(b"{}\n", 0.0)
    assert len(records(tmp_path)) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_older_than_the_retention_goes_as_a_new_day_begins(tmp_path: Path) -> None:
    files = files_of(tmp_path, retention_days=3)
    for day in range(1, 11):
        files.write(b"{}\n", at(2026, 12, day))
    assert days(tmp_path) == {f"202612{day:02}" for day in (7, 8, 9, 10)}
    files.turn(at(2026, 12, 20))
    assert days(tmp_path) == set()


def test_a_purge_touches_nothing_else_and_nothing_of_today(tmp_path: Path) -> None:
    names = ("audit-20261201-7-1.jsonl", "audit-20261202-7-1.jsonl", "audit-20261203-7-1.jsonl")
    others = ("audit-20200101.jsonl", "notes.txt", "audit-20200101-1-1.jsonl.gz")
    for name in names + others:
        (tmp_path / name).touch()
    assert [path.name for path in purge(tmp_path, 0, date(2026, 12, 3))] == list(names[:2])
    assert {path.name for path in tmp_path.iterdir()} == {names[2], *others}


def test_the_command_purges_by_the_settings(tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    for age in (0, 9, 11, 200):
        (tmp_path / f"audit-{today - timedelta(days=age):%Y%m%d}-7-1.jsonl").touch()
    environment = {"INFERWIRE_AUDIT_DIR": str(tmp_path), "INFERWIRE_AUDIT_RETENTION_DAYS": "100"}

    def run(*more: str) -> str:
        done = CliRunner().invoke(inferwire, ["audit", "purge", *more], env=environment)
        assert done.exit_code == 0
        return done.output

    assert run().count("removed") == 1
    assert run("--older-than", "10").count("removed") == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_folder_the_command_says_what_to_name() -> None:
    done = CliRunner().invoke(inferwire, ["audit", "purge"])
    assert (done.exit_code, "INFERWIRE_AUDIT_DIR" in done.output) == (2, True)


def test_a_folder_that_cannot_be_used_is_an_error_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsError, match=r"audit_dir: .*file cannot be used: File exists"):
        open_trail(Settings(audit_dir=file), Counts())


def test_without_a_policy_no_content_is_written(tmp_path: Path) -> None:
    assert _written(tmp_path, Content(ContentPolicy(), "prompt", ("output",))) == {}


def test_what_the_policy_keeps_is_written_after_every_redaction(tmp_path: Path) -> None:
    policy = ContentPolicy(
        keeps_prompt=True,
        keeps_output=True,
        redactions=(lambda text: text.replace("Ada", "[name]"), lambda text: text.replace("[name]", "[person]")),
    )
    assert _written(tmp_path, Content(policy, "I am Ada", ("Hi Ada", "Ada!"))) == {
        "prompt": "I am [person]",
        "outputs": ["Hi [person]", "[person]!"],
    }
    chat = Conversation(messages=(Message("system", "Be kind"), Message("user", "I am Ada")))
    assert _written(tmp_path / "chat", Content(policy, chat, ()))["prompt"] == [
        {"role": "system", "text": "Be kind"},
        {"role": "user", "text": "I am [person]"},
    ]


def test_token_ids_are_kept_only_where_nothing_is_to_be_redacted(tmp_path: Path) -> None:
    plain = ContentPolicy(keeps_prompt=True)
    assert _written(tmp_path, Content(plain, (1, 2, 3), ())) == {"prompt": [1, 2, 3]}
    strict = ContentPolicy(keeps_prompt=True, redactions=(str.upper,))
    assert _written(tmp_path / "strict", Content(strict, (1, 2, 3), ())) == {"content_omitted": "a redaction failed"}


@pytest.mark.parametrize("redaction", [lambda text: text[10**6], lambda text: None, str.encode, sys.exit])
def test_what_a_redaction_cannot_hide_is_not_written_at_all(tmp_path: Path, redaction: object) -> None:
    policy = ContentPolicy(keeps_prompt=True, keeps_output=True, redactions=(redaction,))  # type: ignore[arg-type]
    assert _written(tmp_path, Content(policy, "secret", ("secret",))) == {"content_omitted": "a redaction failed"}


def _written(folder: Path, content: Content) -> dict[str, object]:
    trail = AuditTrail(files_of(folder), Counts())
    trail.put({}, content)
    trail.close()
    (record,) = records(folder)
    del record["time"]
    return record
