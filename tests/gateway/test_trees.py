"""The tree of a turn and the graph of a session at a gateway."""

import pytest
from support.gateway import keys, open_gateway
from support.here import running_worker
from support.trees import tree

from antiphon_gateway import Access
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


async def test_the_tree_of_a_turn_and_the_graph_of_its_session_are_read(redis_url):
    known, secrets = keys(
        acme={"tenant": "acme", "rights": ["read", "write"]}, other={"tenant": "other", "rights": ["read"]}
    )
    async with (
        open_gateway(redis_url, access=Access(known)) as (api, _),
        running_worker(redis_url, App(agents=[tree()])),
    ):

        async def call(who, method, where, status=200, **json):
            headers = {"authorization": f"Bearer {secrets[who]}"}
            return await api.call(method, where, status, headers=headers, **({"json": json} if json else {}))

        turn = (await call("acme", "POST", "/sessions/s/turns", 202, input="Go.", agent="level-0"))["turn_id"]
        await call("acme", "GET", f"/turns/{turn}/result?wait=30")
        found = await call("acme", "GET", f"/turns/{turn}/tree")
        assert (found["turn_id"], found["status"], len(found["children"])) == (turn, "finished", 2)
        below = found["children"][0]
        assert (below["agent"], below["call_id"], len(below["children"])) == ("level-1", "call_1", 2)
        assert found["total_usage"]["input_tokens"] > found["usage"]["input_tokens"] > 0
        assert (await call("acme", "GET", f"/turns/{turn}"))["total_usage"] == found["total_usage"]
        [listed] = (await call("acme", "GET", "/sessions/s/turns"))["turns"]
        assert listed["total_usage"] == found["total_usage"]
        assert (await call("acme", "GET", f"/turns/{below['turn_id']}/tree"))["children"] == below["children"]
        drawn = (await call("acme", "GET", "/sessions/s/graph"))["mermaid"]
        assert drawn.startswith('flowchart TD\n  t1["level-0<br/>finished"]\n')
        assert drawn.count('["leaf<br/>finished"]') == 8
        await call("other", "GET", f"/turns/{turn}/tree", 404)
        await call("other", "GET", "/sessions/s/graph", 403)
