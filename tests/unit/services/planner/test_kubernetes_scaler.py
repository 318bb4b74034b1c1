"""Deployments as pools of workers, against a Kubernetes that keeps its objects."""

import json
import logging

import pytest
from kubernetes.aio.client import AppsV1Api

from baton.naming import WorkerId
from baton.policy.fleet import Role
from services.planner.decision import Cause, Change
from services.planner.kubernetes_api import asked, connect, micro_time, now
from services.planner.kubernetes_scaler import KubernetesScaler
from services.planner.observation import Pool
from services.planner.permissions import RULES
from services.planner.scaler import ScaleConflict, ScaleDenied, ScaleUnavailable
from tests.support.kubernetes import DECODE, DEPLOYMENTS, NAMESPACE, PREFILL

NAMES = {Role.PREFILL: PREFILL, Role.DECODE: DECODE}


@pytest.fixture
def scaler(api):
    return KubernetesScaler(api, NAMESPACE, NAMES, "planner-0")


def change(
    current, wanted, victims=(), cause=Cause.QUEUE, why="decode from 2 to 4: 12 s of prompts wait"
):
    ids = tuple(WorkerId(name) for name in victims)
    return Change(Role.DECODE, current, wanted, cause, why, ids)


async def test_pools_are_what_deployments_say(cluster, scaler):
    cluster.deploy(DECODE, "decode", 3)
    cluster.set_replicas(DECODE, 5)
    assert await scaler.pools() == {Role.PREFILL: Pool(0, 0), Role.DECODE: Pool(5, 3)}


async def test_more_workers(cluster, scaler):
    cluster.deploy(DECODE, "decode", 2)
    await scaler.apply(change(2, 4))
    cluster.settle()
    assert (await scaler.pools())[Role.DECODE] == Pool(4, 4)
    assert cluster.replicas(PREFILL) == 0


async def test_victims_go_first_and_in_their_order(cluster, scaler):
    cluster.deploy(DECODE, "decode", 4)
    one, two, three, four = cluster.pods("decode")
    await scaler.apply(change(4, 2, (three, one)))
    assert cluster.pods("decode") == {one: "-1", two: None, three: "-2", four: None}
    cluster.settle()
    assert list(cluster.pods("decode")) == [two, four]


async def test_survivors_of_an_earlier_choice_are_not_marked_any_more(cluster, scaler):
    cluster.deploy(DECODE, "decode", 3)
    one, two, three = cluster.pods("decode")
    cluster.failing["patch", "deployments/scale"] = 503
    with pytest.raises(ScaleUnavailable):
        await scaler.apply(change(3, 2, (one,)))
    cluster.failing.clear()
    await scaler.apply(change(3, 2, (two,)))
    assert cluster.pods("decode") == {one: None, two: "-1", three: None}


async def test_victims_that_are_gone_do_not_matter(cluster, scaler, caplog):
    caplog.set_level(logging.INFO, "services.planner.deletion_cost")
    cluster.deploy(DECODE, "decode", 3)
    one, *_ = cluster.pods("decode")
    cluster.meanwhile.append(("list", "pods", lambda: cluster.lose(one)))
    await scaler.apply(change(3, 1, (one, "no-pod")))
    assert cluster.replicas(DECODE) == 1
    told = {record.levelno: record.message for record in caplog.records}
    assert told[logging.INFO] == f"pod {one} is gone already"
    assert told[logging.WARNING] == "no pods of app=decode: no-pod"


async def test_pools_that_someone_else_changed_stay_as_they_are(cluster, scaler):
    cluster.deploy(DECODE, "decode", 3)
    with pytest.raises(ScaleConflict, match="has 3 replicas now, not 2"):
        await scaler.apply(change(2, 4))
    scaled = ("get", "deployments/scale", lambda: cluster.set_replicas(DECODE, 6))
    cluster.meanwhile.append(scaled)
    with pytest.raises(ScaleConflict, match="has 6 replicas now, not 3"):
        await scaler.apply(change(3, 4))
    assert cluster.replicas(DECODE) == 6


async def test_another_status_is_no_other_number_of_replicas(cluster, scaler):
    cluster.deploy(DECODE, "decode", 3)
    for _ in range(3):
        cluster.meanwhile.append(("get", "deployments/scale", cluster.settle))
    await scaler.apply(change(3, 4))
    assert cluster.replicas(DECODE) == 4


async def test_a_deployment_that_never_rests_is_a_conflict(cluster, scaler):
    cluster.failing["patch", "deployments/scale"] = 409
    with pytest.raises(ScaleConflict, match="409 made to answer 409"):
        await scaler.apply(change(0, 1))
    assert cluster.asked.count(("patch", "deployments/scale")) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 422])
async def test_what_is_forbidden_is_denied(cluster, scaler, status):
    cluster.failing["patch", "deployments/scale"] = status
    with pytest.raises(ScaleDenied, match=f"cannot scale {DECODE}: {status} made to answer"):
        await scaler.apply(change(0, 1))


@pytest.mark.parametrize("status", [404, 408, 410, 425, 429, 500, 503])
async def test_what_may_pass_is_unavailable(cluster, scaler, status):
    cluster.failing["get", "deployments"] = status
    with pytest.raises(ScaleUnavailable, match=f"cannot read the Deployment .*: {status}"):
        await scaler.pools()


async def test_without_the_right_victims_the_pool_stays_as_it_is(cluster, scaler):
    cluster.deploy(DECODE, "decode", 3)
    cluster.failing["patch", "pods"] = 403
    with pytest.raises(ScaleDenied, match="cannot annotate the pod"):
        await scaler.apply(change(3, 2, list(cluster.pods("decode"))[:1]))
    assert cluster.replicas(DECODE) == 3


async def test_a_deployment_that_is_not_there(cluster, api):
    names = {Role.PREFILL: PREFILL, Role.DECODE: "other"}
    with pytest.raises(ScaleDenied, match="cannot get resource 'deployments'"):
        await KubernetesScaler(api, NAMESPACE, names, "planner-0").pools()
    del cluster.objects[DEPLOYMENTS, NAMESPACE, DECODE]
    with pytest.raises(ScaleUnavailable, match=f"Deployment {DECODE}: 404 {DECODE} not found"):
        await KubernetesScaler(api, NAMESPACE, NAMES, "planner-0").pools()


async def test_no_answer_is_not_waited_for(cluster, api):
    cluster.silent.add(("get", "deployments"))
    call = AppsV1Api(api).read_namespaced_deployment(DECODE, NAMESPACE)
    with pytest.raises(ScaleUnavailable, match=r"cannot look: no answer within 0\.05 s"):
        await asked("cannot look", call, 0.05)


async def test_answers_that_are_none(cluster, scaler):
    cluster.put((DEPLOYMENTS, NAMESPACE, DECODE), {"metadata": {"name": 3}})
    with pytest.raises(ScaleUnavailable, match="not an answer of Kubernetes"):
        await scaler.pools()


JUNK = ["null", "[]", "{}", "7", "", "<html>", "[" * 100_000, '{"spec": {"replicas": "many"}}']


@pytest.mark.parametrize(
    "what",
    [
        ("get", "deployments"),
        ("get", "deployments/scale"),
        ("list", "pods"),
        ("patch", "pods"),
        ("patch", "deployments/scale"),
    ],
)
async def test_whatever_is_answered_is_done_or_a_failure(cluster, scaler, what):
    for junk in JUNK:
        cluster.deploy(DECODE, "decode", 3)
        cluster.answering = {what: junk}
        try:
            await scaler.pools()
            await scaler.apply(change(3, 2, list(cluster.pods("decode"))[:1]))
            done = what == ("patch", "pods")
        except (ScaleUnavailable, ScaleConflict):
            done = False
        assert cluster.replicas(DECODE) == 3 - done


async def test_an_event_is_never_a_failure(cluster, scaler):
    for junk in JUNK:
        cluster.answering["create", "events"] = junk
        await scaler.tell(change(3, 2), dry_run=False)


async def test_fewer_than_none_are_no_replicas(cluster, scaler):
    cluster.set_replicas(DECODE, -3)
    with pytest.raises(ScaleUnavailable, match=f"Deployment {DECODE} has -3 replicas"):
        await scaler.pools()


async def test_nobody_listens(tmp_path):
    path = tmp_path / "kubeconfig"
    cluster = {"name": "it", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
    user = {"name": "it", "user": {"token": "t"}}
    path.write_text(
        json.dumps(
            {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "it"}
        )
    )
    api = await connect(path)
    with pytest.raises(ScaleUnavailable, match="cannot read the Deployment"):
        await KubernetesScaler(api, NAMESPACE, NAMES, "planner-0").pools()
    await api.close()


async def test_clusters_that_can_not_be_found(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(OSError, match="this pod's service account"):
        await connect(None)
    with pytest.raises(OSError, match=r"cannot reach Kubernetes by .*none"):
        await connect(tmp_path / "none")


@pytest.mark.parametrize("text", ["{", "", "[]", "a: b", "\0"])
async def test_a_kubeconfig_that_is_none(tmp_path, text):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(OSError, match="cannot reach Kubernetes by") as raised:
        await connect(path)
    assert "\n" not in str(raised.value)


async def test_an_event_says_why(cluster, scaler):
    await scaler.pools()
    await scaler.tell(change(2, 4), dry_run=False)
    await scaler.tell(change(4, 2, cause=Cause.SURPLUS, why="ü" * 2000), dry_run=True)
    done, would = cluster.events()
    assert (done["reason"], done["type"], done["action"]) == ("ScaledUp", "Normal", "Scale")
    assert done["note"] == "queue: decode from 2 to 4: 12 s of prompts wait"
    assert done["reportingController"] == "baton.dev/planner"
    assert done["reportingInstance"] == "planner-0"
    assert done["regarding"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": DECODE,
        "namespace": NAMESPACE,
        "uid": f"uid-{DECODE}",
    }
    assert would["reason"] == "WouldScaleDown"
    assert would["note"].startswith("surplus: ü")
    assert len(would["note"].encode()) <= 1024


async def test_a_lost_event_is_logged(cluster, scaler, caplog):
    cluster.failing["create", "events"] = 500
    await scaler.tell(change(2, 4), dry_run=False)
    assert f"cannot write an event on {DECODE}: 500" in caplog.text


async def test_it_needs_all_of_its_rules_but_those_of_the_lease(cluster, scaler, caplog):
    caplog.set_level(logging.WARNING)
    cluster.deploy(DECODE, "decode", 2)
    await scaler.pools()
    await scaler.apply(change(2, 1, list(cluster.pods("decode"))[:1]))
    await scaler.tell(change(2, 1), dry_run=False)
    needed = {(rule.group, rule.resource, verb) for rule in RULES for verb in rule.verbs}
    assert cluster.used == {one for one in needed if one[1] != "leases"}
    assert not caplog.records


def test_times_have_a_fraction():
    moment = now().replace(microsecond=0)
    assert micro_time(moment).isoformat().endswith(".000001+00:00")
