"""Whose session it is: whoever names a tenant reads and changes that tenant's sessions alone, in both runtimes."""

import pytest

from antiphon.errors import UsageError, WrongTenant

OPERATIONS = {
    "messages": lambda session: session.messages,
    "history": lambda session: session.history(-1),
    "variables": lambda session: dict(session.variables),
    "metadata": lambda session: dict(session.metadata),
    "tenant": lambda session: session.tenant,
    "queue": lambda session: session.queue,
    "files": lambda session: session.files,
    "system": lambda session: session.system,
    "parent": lambda session: session.parent,
    "children": lambda session: session.children(),
    "status": lambda session: session.status(),
    "to_dict": lambda session: session.to_dict(),
    "run": lambda session: session.run("tell me"),
    "stream": lambda session: list(session.stream("tell me")),
    "submit": lambda session: session.submit("tell me").result(60),
    "add_message": lambda session: session.add_message({"role": "user", "content": "mine"}),
    "clear": lambda session: session.clear(),
    "set_variables": lambda session: session.set_variables({"a": 1}),
    "set_metadata": lambda session: session.set_metadata({"a": 1}),
    "fork": lambda session: session.fork(),
    "child": lambda session: session.child().run("tell me"),
    "child_reads": lambda session: session.child().messages,
    "close": lambda session: session.close(),
    "delete": lambda session: session.delete(),
}
OPENED = {"nothing else": {}, "more": {"system": "Tell all.", "variables": {"a": 1}, "metadata": {"b": 2}}}
READS = list(list(OPERATIONS)[: list(OPERATIONS).index("run")])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("owner", ["acme", None])
def test_a_session_of_nobody_and_one_of_another_tenant_are_refused_alike(name, owner, runtime):
    agent = runtime.agent()
    agent.session("s", tenant=owner).run("our secret")
    before = agent.session("s").to_dict()
    for opened in OPENED.values():
        with pytest.raises(WrongTenant) as error:
            OPERATIONS[name](agent.session("s", tenant="other", **opened))
        assert error.value.message == (
            "The session does not belong to the tenant 'other': leave tenant= out, or use another session id."
        )
        assert (error.value.code, error.value.session_id) == ("wrong_tenant", "s")
    assert agent.session("s").to_dict() == before
    assert [info.session_id for info in agent.sessions()] == ["s"]


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("name", READS)
def test_reading_claims_no_session(name, opened, runtime):
    agent = runtime.agent()
    OPERATIONS[name](agent.session("s", tenant="acme", **OPENED[opened]))
    assert list(agent.sessions()) == []
    agent.session("s", tenant="other").run("mine")
    assert agent.session("s").tenant == "other"


def test_a_session_that_is_only_read_shows_what_it_was_opened_with(runtime):
    agent = runtime.agent()
    session = agent.session("s", tenant="acme", system="Be brief.", variables={"a": 1}, metadata={"b": 2})
    assert (session.tenant, session.system, session.messages) == ("acme", "Be brief.", [])
    assert (dict(session.variables), dict(session.metadata)) == ({"a": 1}, {"b": 2})
    session.run("1")
    again = agent.session("s", tenant="acme", metadata={"c": 3})
    assert dict(again.metadata) == {"b": 2, "c": 3}
    assert dict(agent.session("s").metadata) == {"b": 2}
    assert (agent.session("s").tenant, agent.session("s").system) == ("acme", "Be brief.")


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_tenant_of_a_session_does_everything_with_it(name, runtime):
    agent = runtime.agent()
    agent.session("s", tenant="acme").run("1")
    OPERATIONS[name](agent.session("s", tenant="acme"))


def test_a_session_that_begins_anew_under_another_tenant_is_no_longer_read(runtime):
    agent = runtime.agent()
    session = agent.session("s", tenant="acme")
    session.run("1")
    agent.session("s").delete()
    assert session.messages == []
    agent.session("s", tenant="other").run("2")
    for read in (lambda: session.messages, lambda: session.run("3"), lambda: session.set_metadata({"a": 1})):
        with pytest.raises(WrongTenant):
            read()


def test_a_session_that_was_deleted_begins_anew_under_the_tenant_of_its_object(runtime):
    agent = runtime.agent()
    session = agent.session("s", tenant="acme")
    for begin in (lambda: session.run("1"), lambda: session.set_metadata({"a": 1})):
        begin()
        assert agent.session("s").tenant == "acme"
        agent.session("s").delete()


def test_a_wrong_tenant_is_a_wrong_call():
    assert issubclass(WrongTenant, UsageError)
    assert not WrongTenant().retryable
