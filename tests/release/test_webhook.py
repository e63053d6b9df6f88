"""The webhook: signed, to https only, and a bad receiver is in nobody's way."""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from pairgate.app import outbox, release, targets, webhook
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.domain.pair import VersionRef
from pairgate.errors import InvalidInput, NotFound, PairgateError, Refused, Unavailable
from tests.release.receivers import SECRET, Receiver, receiver, rude
from tests.release.story import ALICE, LINE, add, evidence, put_in_production

REFUSING = "http://127.0.0.1:9/hook"  # nobody listens on the discard port


@pytest.fixture
def hook(ws: Workspace) -> Iterator[Receiver]:
    with receiver() as made:
        aim(ws, made.url)
        yield made


def aim(ws: Workspace, url: str) -> None:
    ws.environ[webhook.URL_SETTING] = url
    ws.environ[webhook.SECRET_SETTING] = SECRET


def tries(ws: Workspace) -> list[int]:
    return [m.delivery("webhook").n_tries for m in ws.registry.pending()]


def states(ws: Workspace) -> list[str]:
    return [m.delivery("webhook").state for m in ws.registry.pending()]


@contextmanager
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "_FIRST_DELAY_S", 0.05)
        yield


# --- what is sent -----------------------------------------------------------------------------


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the reference libraries' tests."""
    (secret,) = webhook.read_secrets({webhook.SECRET_SETTING: SECRET})
    made = webhook.signature(
        secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_message_is_sent_once_in_order_and_signed(
    ws: Workspace, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):  # no way to a receiver on this machine
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    put_in_production(ws, b"base", b"draft-1")
    release.disable(ws, LINE, "slow", actor=ALICE)
    assert outbox.deliver(ws).n_delivered == 3
    assert outbox.deliver(ws).n_delivered == 0
    said = [json.loads(body) for _, body in hook.got]
    assert [m["type"] for m in said] == ["evaluation.stored", "line.promote", "line.disable"]
    assert said[2]["data"]["hash"] == ws.registry.head(LINE).hash
    assert said[2]["data"]["reason"] == "slow"
    assert len(set(hook.ids)) == 3
    (secret,) = webhook.read_secrets({webhook.SECRET_SETTING: SECRET})
    for headers, body in hook.got:
        at = int(headers["webhook-timestamp"])
        assert abs(time.time() - at) < 60
        signed = webhook.signature(secret, headers["webhook-id"], at, body)
        assert headers["webhook-signature"] == signed


def test_a_message_that_comes_again_has_the_same_id(
    ws: Workspace, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.answers = [(500, {}), (503, {}), (204, {})]
    put_in_production(ws, b"base", b"draft")
    with quick(monkeypatch):
        done = outbox.deliver(ws, retry_for_s=10.0)
    assert (done.n_delivered, done.failures) == (2, ())
    assert len(hook.ids) == 4
    assert len(set(hook.ids[:3])) == 1
    assert hook.ids[3] != hook.ids[0]


def test_two_secrets_while_one_replaces_the_other(
    ws: Workspace, hook: Receiver, tmp_path: Path
) -> None:
    other = "whsec_" + "A" * 40
    (tmp_path / "secrets").write_text(f"{SECRET}\n{other}\n")
    del ws.environ[webhook.SECRET_SETTING]
    ws.environ[webhook.SECRET_FILE_SETTING] = str(tmp_path / "secrets")
    put_in_production(ws, b"base", b"draft")
    outbox.deliver(ws)
    signatures = hook.got[0][0]["webhook-signature"].split(" ")
    assert len(signatures) == 2
    assert all(s.startswith("v1,") for s in signatures)


def test_https_with_a_certificate_that_is_checked(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    put_in_production(ws, b"base", b"draft")
    with receiver(context) as made:
        aim(ws, made.url)
        (failure,) = outbox.deliver(ws).failures
        assert "CERTIFICATE_VERIFY_FAILED" in failure.error
        assert made.got == []
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert outbox.retry(ws).n_delivered == 2
        assert len(made.got) == 2


# --- settings that cannot be right ------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "http://127.0.0.1.example.com/hook",
        "http://localhost.example.com/hook",
        "https://user:hunter2@example.com/hook",
        "https://",
        "https://[::1/hook",
        "https://example.com:99999/",
        "ftp://example.com/hook",
        "file:///etc/passwd",
        "example.com/hook",
    ],
)
def test_urls_that_are_refused_before_anything_is_sent(url: str) -> None:
    environ = {webhook.URL_SETTING: url, webhook.SECRET_SETTING: SECRET}
    with pytest.raises(InvalidInput, match=r"https|URL") as caught:
        webhook.send(environ, key="msg_1", body=b"{}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("", "no secret"),
        ("whsec_", "fewer than 24 bytes"),
        ("whsec_c2hvcnQ=", "fewer than 24 bytes"),
        ("whsec_not base64!", "not base64"),
        ("whsec_\u00e4", "not base64"),
    ],
)
def test_secrets_that_are_refused(secret: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        webhook.read_secrets({webhook.SECRET_SETTING: secret})
    assert len(secret) < 10 or secret not in str(caught.value)


def test_a_secret_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        webhook.read_secrets({webhook.SECRET_FILE_SETTING: str(tmp_path / "none")})


# --- receivers that fail ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message"),
    [(500, "answers 500"), (400, "answers 400"), (302, "redirects are not followed")],
)
def test_an_answer_that_is_not_2xx_waits(
    ws: Workspace, hook: Receiver, status: int, message: str
) -> None:
    hook.answers = [(status, {"location": "http://127.0.0.1:9/other"})]
    put_in_production(ws, b"base", b"draft")
    (failure,) = outbox.deliver(ws).failures
    assert message in failure.error
    assert "token" not in str(failure)  # the host is enough
    assert (len(hook.got), tries(ws)) == (1, [1, 0])


def test_a_receiver_that_is_gone_is_asked_no_more(ws: Workspace, hook: Receiver) -> None:
    hook.answers = [(410, {})]
    put_in_production(ws, b"base", b"draft")
    for _ in range(3):
        (failure,) = outbox.deliver(ws).failures
        assert "410" in failure.error
        assert failure.next_try_at is None
    assert len(hook.got) == 1
    hook.answers = [(204, {})]
    assert outbox.retry(ws, ws.registry.pending()[0].id).n_delivered == 2


def test_a_receiver_names_the_time(ws: Workspace, hook: Receiver) -> None:
    hook.answers = [(429, {"retry-after": "120"})]
    put_in_production(ws, b"base", b"draft")
    (failure,) = outbox.deliver(ws).failures
    assert failure.next_try_at is not None
    assert 110 < outbox._seconds_until(failure.next_try_at) <= 120


@pytest.mark.parametrize("behaviour", ["hangs", "closes", "drips"])
def test_a_rude_receiver_costs_a_bounded_time(
    ws: Workspace, behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.5)
    put_in_production(ws, b"base", b"draft")
    with rude(behaviour) as url:
        aim(ws, url)
        started = time.monotonic()
        (failure,) = outbox.deliver(ws).failures
        assert time.monotonic() - started < 3.0
    expected = "could not be reached" if behaviour == "closes" else "did not answer"
    assert expected in failure.error


def test_a_dead_receiver_is_not_hammered(ws: Workspace) -> None:
    aim(ws, REFUSING)
    put_in_production(ws, b"base", b"draft")
    waits = []
    for n in range(1, 6):
        (failure,) = outbox.retry(ws).failures
        outbox.deliver(ws)  # too early: it is left alone
        assert tries(ws)[0] == n
        waits.append(outbox._seconds_until(failure.next_try_at or ""))
    assert 3.5 < waits[0] < 6.1
    assert all(1.2 < later / earlier < 3.1 for earlier, later in pairwise(waits))


@pytest.mark.parametrize("n_tries", [10, 1000])
def test_the_longest_wait_is_an_hour(ws: Workspace, n_tries: int) -> None:
    from pairgate.domain.records import Delivery

    aim(ws, REFUSING)
    put_in_production(ws, b"base", b"draft")
    before = Delivery(target="webhook", n_tries=n_tries)
    ws.registry.mark(ws.registry.pending()[0].id, before, "2026-12-01T00:00:00Z")
    (failure,) = outbox.deliver(ws).failures
    assert 2800 < outbox._seconds_until(failure.next_try_at or "") < 4400


def test_a_target_has_a_time_budget(
    ws: Workspace, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "BUDGET_S", 0.2)
    hook.delay_s = 0.3
    put_in_production(ws, b"base", b"draft")
    done = outbox.deliver(ws)
    assert len(hook.got) == 1
    assert "left for the next delivery" in done.failures[0].error
    assert done.n_delivered == outbox.deliver(ws).n_delivered == 1


# --- one message, one line, one target holds up nothing else ------------------------------------


def test_a_poisoned_message_blocks_only_its_own_line_and_target(
    ws: Workspace, hook: Receiver, tmp_path: Path
) -> None:
    ws.environ[targets.POINTER_SETTING] = str(tmp_path)
    put_in_production(ws, b"base", b"draft-1")
    ws.registry.create_line("other", "2026-12-01T00:00:00Z")
    with ws.registry.lock("other") as transaction:
        payload = {"at": "2026-12-01T00:00:00Z", "kind": "promote", "sequence": 1}
        nothing = dict.fromkeys(("production", "previous", "profile_digest", "hash"))
        transaction.enqueue("head", payload | nothing)
    hook.answers = [(400, {}), (204, {})]
    done = outbox.deliver(ws)
    assert [(f.line, f.target) for f in done.failures] == [(LINE, "webhook")]
    assert done.n_delivered == 1
    assert json.loads(hook.got[1][1])["data"]["line"] == "other"
    assert (tmp_path / f"{LINE}.json").is_file()
    assert [m.delivery("pointer").state for m in ws.registry.pending()] == ["done", "done"]


def test_a_message_is_dropped_on_record(ws: Workspace, hook: Receiver) -> None:
    hook.answers = [(400, {}), (204, {})]
    put_in_production(ws, b"base", b"draft")
    outbox.deliver(ws)
    poisoned = ws.registry.pending()[0]
    (decision,) = outbox.drop(ws, "it cannot be read", poisoned.id, actor=ALICE)
    assert decision == ws.registry.decisions(LINE)[-1]
    assert (decision.kind, decision.actor, decision.identity_source) == ("drop", "alice", "os-user")
    assert decision.reason == f"message {poisoned.id} is not sent to webhook: it cannot be read"
    assert ws.registry.head(LINE).production == 1
    assert outbox.deliver(ws).n_delivered == 1
    assert len(hook.got) == 2
    assert ws.registry.pending() == []
    with pytest.raises(NotFound):
        outbox.drop(ws, "again", poisoned.id)
    with pytest.raises(InvalidInput, match="--target"):
        outbox.drop(ws, "everything")


def test_a_target_that_is_no_more(ws: Workspace) -> None:
    aim(ws, REFUSING)
    put_in_production(ws, b"base", b"draft-1")
    outbox.deliver(ws)
    del ws.environ[webhook.URL_SETTING]
    assert outbox.deliver(ws).n_delivered == 0
    assert [(w.delivery.target, w.is_set_up) for w in outbox.waiting(ws)] == [
        ("webhook", False),
        ("webhook", False),
    ]
    outbox.drop(ws, "we have none any more", target="webhook", actor=ALICE)
    put_in_production(ws, b"base", b"draft-2")
    assert outbox.deliver(ws).n_delivered == 2
    aim(ws, REFUSING)
    put_in_production(ws, b"base", b"draft-3")
    with pytest.raises(InvalidInput, match="needs a reason"):
        outbox.drop(ws, " ", target="webhook")


def test_a_machine_without_the_webhook_does_not_end_what_another_owes(
    ws: Workspace, hook: Receiver
) -> None:
    put_in_production(ws, b"base", b"draft-1")
    outbox.deliver(ws)
    laptop = Workspace.open(home=str(ws.home))
    release.disable(laptop, LINE, "at three in the morning", actor=ALICE)
    assert outbox.deliver(laptop).n_delivered == 0
    assert outbox.deliver(ws).n_delivered == 1
    assert json.loads(hook.got[-1][1])["type"] == "line.disable"
    laptop.close()


# --- several deliveries at once ---------------------------------------------------------------


def test_deliveries_at_once_send_each_message_once_and_in_order(
    ws: Workspace, hook: Receiver
) -> None:
    hook.delay_s = 0.02
    put_in_production(ws, b"base", b"draft")
    for n in range(4):
        release.disable(ws, LINE, f"round {n}", actor=ALICE)
        release.enable(ws, LINE, actor=ALICE)

    def one() -> None:
        mine = Workspace.open(home=str(ws.home))
        mine.environ.update(ws.environ)
        outbox.deliver(mine)
        mine.close()

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hook.ids) == len(set(hook.ids)) == 10
    sequences = [json.loads(body)["data"].get("sequence", 0) for _, body in hook.got]
    assert sequences == sorted(sequences)


def test_a_delivery_that_dies_after_sending_sends_again_with_the_same_id(
    ws: Workspace, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_production(ws, b"base", b"draft")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(ws.registry), "mark", die)
        outbox.deliver(ws)
    assert outbox.deliver(ws).n_delivered == 2
    assert len(hook.ids) == 3
    assert hook.ids[0] == hook.ids[1]


# --- never in the way ---------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", ["hangs", "drips"])
def test_promote_and_rollback_do_not_wait(ws: Workspace, behaviour: str) -> None:
    """Measured against the same moves without any receiver."""

    def seconds(move: object) -> float:
        started = time.monotonic()
        move()  # type: ignore[operator]
        return time.monotonic() - started

    def both(name: str) -> float:
        version = add(ws, b"base", name.encode())
        evidence(ws, version)
        ref = VersionRef.parse(str(version))
        forward = seconds(lambda: release.promote(ws, ref, actor=ALICE))
        return forward + seconds(lambda: release.rollback(ws, LINE, actor=ALICE))

    put_in_production(ws, b"base", b"first")
    alone = min(both("second"), both("third"))
    with rude(behaviour) as url:
        aim(ws, url)
        ws.environ[outbox.DELIVERY_SETTING] = "on"
        against = min(both("fourth"), both("fifth"))
    assert against < alone + 1.0  # the receiver would cost 15 s
    assert ws.registry.head(LINE).production == 1


def test_a_command_that_leaves_children_is_ended_with_them(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "COMMAND_TIMEOUT_S", 4.0)
    script = tmp_path / "hook.py"
    script.write_text(
        "import os, subprocess, sys, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'env')!r}).write_text(repr(sorted(os.environ)))\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    ws.environ[targets.COMMAND_SETTING] = f"{sys.executable} {script}"
    ws.environ[webhook.SECRET_SETTING] = SECRET
    put_in_production(ws, b"base", b"draft")
    started = time.monotonic()
    (failure,) = outbox.deliver(ws).failures
    assert time.monotonic() - started < 20.0
    assert "still running after" in failure.error
    assert webhook.SECRET_SETTING not in (tmp_path / "env").read_text()
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    for _ in range(50):
        if not status.exists() or status.read_text().split(") ")[1][0] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the command's child lives on")


def test_a_broken_pointer_file_is_written_anew(ws: Workspace, tmp_path: Path) -> None:
    ws.environ[targets.POINTER_SETTING] = str(tmp_path)
    put_in_production(ws, b"base", b"draft")
    path = tmp_path / f"{LINE}.json"
    for broken in (b"", b"{", b"[]", b'{"sequence": "9"}', b"\xff"):
        path.write_bytes(broken)
        for message in ws.registry.pending():
            targets.write_pointer(ws, targets.parcel(message, "pointer"))
        assert json.loads(path.read_bytes())["production"]["version"] == 1
    assert os.listdir(tmp_path).count(path.name) == 1


# --- the commands -----------------------------------------------------------------------------


def run(ws: Workspace, *args: str) -> tuple[int, str]:
    environ = {**ws.environ, "PAIRGATE_HOME": str(ws.home)}
    result = CliRunner().invoke(cli, ["outbox", *args], env=environ)
    if isinstance(result.exception, PairgateError):
        return result.exception.exit_code, result.output + result.exception.message
    return result.exit_code, result.output


def test_the_commands(ws: Workspace, hook: Receiver) -> None:
    hook.answers = [(503, {})]
    put_in_production(ws, b"base", b"draft")
    code, said = run(ws, "deliver")
    assert code == Unavailable.exit_code
    assert "code: webhook failed: localhost answers 503; next try at 20" in said
    code, said = run(ws)
    assert code == 0
    assert "webhook" in said
    assert "localhost answers 503" in said
    code, said = run(ws, "list", "--json")
    first, second = json.loads(said)
    assert first["delivery"]["n_tries"] == 1
    assert second["delivery"] == {
        "target": "webhook",
        "state": "waiting",
        "n_tries": 0,
        "last_error": "",
        "next_try_at": "",
    }
    code, said = run(ws, "drop", str(first["message"]["id"]), "--reason", "not wanted")
    assert code == 0
    assert "1 dropped" in said
    hook.answers = [(204, {})]
    code, said = run(ws, "retry", "--target", "webhook")
    assert code == 0
    assert "1 delivered" in said
    assert "nothing waits" in run(ws)[1]


def test_refused_is_held(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Refused("never")

    aim(ws, REFUSING)
    put_in_production(ws, b"base", b"draft")
    monkeypatch.setattr(targets, "_send_webhook", refuse)
    outbox.deliver(ws)
    assert states(ws) == ["held", "waiting"]
    assert "held" in run(ws)[1]
