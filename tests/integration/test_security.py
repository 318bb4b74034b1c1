"""API keys, tenants' limits and mutual TLS, with all of Baton's processes."""

import asyncio
import ssl
import urllib.error
import urllib.request

import pytest

from baton import errors
from baton import keys as api_keys
from baton.client import AsyncClient, Client
from baton.keys import Owner
from baton.local.guard import Guard
from baton.tls import Tls
from tests.support.certificates import FLEET_NAME, Authority
from tests.support.cluster import Cluster
from tests.support.prompts import prompt_of

OPERATOR, SLOW, FAST = Owner("ops", operator=True), Owner("slow"), Owner("fast")
LONG = {"max_tokens": 400, "ignore_eos": True}
SHORT = {"max_tokens": 4, "ignore_eos": True, "temperature": 0.0}


class KeyFile:
    """The keys of a cluster."""

    def __init__(self, path):
        self.path = path
        self.keys = {}
        self.write(OPERATOR, SLOW, FAST)

    def write(self, *owners):
        """Only keys of these are in the file from now on."""
        self.keys |= {one: api_keys.new_key() for one in owners if one not in self.keys}
        lines = [api_keys.line_of(self.keys[one], one) for one in owners]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(self.path)


class Keyed:
    """Two routers that want keys, and hold two tenants to limits."""

    def __init__(self, cluster, file):
        self.cluster = cluster
        self.file = file

    def client(self, owner, router=0):
        key = self.file.keys[owner] if owner else None
        return AsyncClient(self.cluster.addresses[router], api_key=key)

    async def limited(self, client, **options):
        with pytest.raises(errors.Exhausted) as raised:
            await client.complete("Once", **SHORT, **options)
        return raised.value


@pytest.fixture(scope="module")
def keyed_cluster(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("keyed")
    file = KeyFile(directory / "keys")
    with Cluster(
        model,
        run_dir=directory / "run",
        aggregated=True,
        routers=2,
        guard=Guard(api_keys=file.path),
        api_key=file.keys[OPERATOR],
        service_flags=["router:--tenant-limits=slow=0.5/s burst:1, fast=streams:2"],
    ) as running:
        yield Keyed(running, file)


@pytest.fixture
def keyed(keyed_cluster):
    yield keyed_cluster
    keyed_cluster.cluster.assert_clean()


async def test_only_keys_open_the_routers(keyed):
    stranger = Client(keyed.cluster.address)
    with stranger, pytest.raises(errors.Unauthenticated):
        await asyncio.to_thread(stranger.model, timeout=5)
    async with keyed.client(FAST) as client:
        assert (await client.model()).context_tokens
        assert len((await client.complete("Once", **SHORT)).choices[0].tokens) == 4
        with pytest.raises(errors.PermissionDenied, match="operator"):
            await client.fleet()
        with pytest.raises(errors.PermissionDenied) as raised:
            await client.complete("Once", **SHORT, tenant="slow")
        assert raised.value.field == "tenant"
    async with keyed.client(OPERATOR) as client:
        assert (await client.fleet()).workers


async def test_a_key_is_changed_for_another_without_a_restart(keyed):
    before = keyed.cluster.pids("router")
    new = Owner("new")
    keyed.file.write(OPERATOR, FAST, new)
    await becomes(keyed, {new: True, SLOW: False, FAST: True})
    keyed.file.write(OPERATOR, SLOW, FAST)
    await becomes(keyed, {new: False, SLOW: True, FAST: True})
    assert keyed.cluster.pids("router") == before


async def becomes(keyed, expected):
    """Waits until both routers let in whom they should."""
    for owner, works in expected.items():
        for router in range(2):
            async with keyed.client(owner, router) as client, asyncio.timeout(5):
                while await lets_in(client) is not works:
                    await asyncio.sleep(0.05)


async def lets_in(client):
    try:
        await client.model()
    except errors.Unauthenticated:
        return False
    return True


async def test_a_pace_counts_over_both_routers_and_says_when(keyed):
    async with keyed.client(SLOW) as here, keyed.client(SLOW, router=1) as there:
        await here.complete("Once", **SHORT)
        told = await keyed.limited(there)
        assert told.reason == "RATE_LIMITED"
        assert 0 < told.retry_after <= 2
        async with keyed.client(FAST, router=1) as other:
            await other.complete("Once", **SHORT)
        await asyncio.sleep(told.retry_after)
        await there.complete("Once", **SHORT)
    limited = [fleet.router.limited_requests for fleet in keyed.cluster.fleets()]
    assert limited == [0, 1]


async def test_streams_count_over_both_routers_until_they_end(keyed):
    async with keyed.client(FAST) as here, keyed.client(FAST, router=1) as there:
        one, two = here.generate("Once", **LONG), there.generate("Once", **LONG)
        async with one, two:
            await anext(one)
            await anext(two)
            for client in (here, there):
                assert (await keyed.limited(client)).reason == "TOO_MANY_STREAMS"
        async with asyncio.timeout(2):
            while not await has_room(here, there):  # both were cancelled
                await asyncio.sleep(0.02)


async def test_a_killed_routers_streams_are_free_within_seconds(keyed):
    async with keyed.client(FAST) as here, keyed.client(FAST, router=1) as there:
        one, two = there.generate("Once", **LONG), there.generate("Once", **LONG)
        async with one, two:
            await anext(one)
            await anext(two)
            assert (await keyed.limited(here)).reason == "TOO_MANY_STREAMS"
            await asyncio.to_thread(keyed.cluster.kill, "router-1")
            async with asyncio.timeout(6):
                while not await has_room(here):
                    await asyncio.sleep(0.1)
    keyed.cluster.start("router-1")  # on this thread: it ends with the one that starts it
    await asyncio.to_thread(keyed.cluster.wait_ready, 30.0)


async def has_room(*clients):
    """Whether each of them gets an answer, all at the same time."""
    try:
        await asyncio.gather(*(client.complete("Once", **SHORT) for client in clients))
    except errors.Exhausted:
        return False
    return True


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


class Encrypted:
    """Two hosts whose processes all speak TLS; routers want certificates and keys."""

    def __init__(self, cluster, authority, file):
        self.cluster = cluster
        self.authority = authority
        self.file = file

    def client(self, address=None, tls=None):
        key = self.file.keys[FAST]
        own = tls or self.authority.issue("client").tls
        return AsyncClient(address or self.cluster.address, api_key=key, tls=own)


@pytest.fixture(scope="module")
def encrypted_cluster(model, authority, tmp_path_factory):
    directory = tmp_path_factory.mktemp("encrypted")
    file = KeyFile(directory / "keys")
    own = authority.issue("fleet", FLEET_NAME, "127.0.0.1")
    with Cluster(
        model,
        run_dir=directory / "run",
        hosts=2,
        gateway=True,
        guard=Guard(file.path, own.cert, own.key, own.ca, FLEET_NAME),
        api_key=file.keys[OPERATOR],
        service_flags=["router:--tls-client-certs"],
    ) as running:
        yield Encrypted(running, authority, file)


@pytest.fixture
def encrypted(encrypted_cluster):
    yield encrypted_cluster
    encrypted_cluster.cluster.assert_clean()


async def test_a_whole_generation_over_two_hosts_is_encrypted(encrypted, reference):
    cluster = encrypted.cluster

    def reads():
        by_address = {one.address: one.status for one in cluster.fleet().transfers}
        return by_address[cluster.transfer_address(1)].peer_blobs

    prompt, before = prompt_of(120), reads()
    async with encrypted.client() as client:
        done = await client.complete(prompt, max_tokens=10, ignore_eos=True, temperature=0.0)
    tokens = [token.id for token in done.choices[0].tokens]
    assert tokens == reference.generate(prompt, max_tokens=10, ignore_eos=True)
    assert reads() - before >= 120 // 16
    fleet = cluster.fleet()
    assert not [one.error for one in [*fleet.workers, *fleet.transfers] if one.error]


async def test_no_process_answers_strangers(encrypted, authority, tmp_path):
    stranger = Authority(tmp_path / "other").issue("stranger")
    specs = encrypted.cluster.supervisor.specs.values()
    addresses = [spec.address for spec in specs if spec.kind not in ("valkey", "gateway")]
    assert len(addresses) == 5
    for address in addresses:
        for tls in (
            None,
            Tls(ca=authority.ca, server_name=FLEET_NAME),
            Tls(authority.ca, stranger.cert, stranger.key, FLEET_NAME),
        ):
            async with AsyncClient(address, tls=tls) as client:
                with pytest.raises(errors.BatonError) as raised:
                    await client.model(timeout=5)
            assert raised.value.reason == "UNREACHABLE", address


async def test_clients_do_not_believe_strangers(encrypted, authority, tmp_path):
    own, other = authority.issue("own"), Authority(tmp_path / "other")
    wrong_ca = Tls(other.ca, own.cert, own.key, FLEET_NAME)
    wrong_name = Tls(own.ca, own.cert, own.key, "another.name")
    for tls in (wrong_ca, wrong_name):
        async with encrypted.client(tls=tls) as client:
            with pytest.raises(errors.Unavailable):
                await client.model(timeout=5)


def test_the_gateway_speaks_https_and_hands_keys_on(encrypted, authority):
    url, file = encrypted.cluster.url, encrypted.file
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    for key, expected in [(None, 401), (api_keys.new_key(), 401), (file.keys[FAST], 200)]:
        code, headers = get(f"{url}/v1/models", key, trusted)
        assert code == expected
        assert (headers.get("www-authenticate") == "Bearer") == (expected == 401)
    assert get(f"{url}/ready", None, trusted)[0] == 200
    with pytest.raises(urllib.error.URLError, match="certificate"):
        get(f"{url}/ready", None, ssl.create_default_context())


def get(url, key, context):
    """Status and headers of an answer."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers
