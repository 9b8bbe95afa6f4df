"""Hosts on one machine: network namespaces with their own addresses, connected by a bridge.

Needs Linux, root and iproute2. Traffic between parted hosts is lost silently, as in a network: its frames go to a
device that does not exist. A slow host sends through a token bucket.

>>> with Hosts("redis", "worker") as hosts:
...     processes.start(*hosts["worker"].inside, "antiphon", "worker", "--redis-url", url)
...     hosts.part("worker", "redis")            # nothing passes between them
...     hosts.part_one_way("worker", "redis")    # what the worker sends is lost, and what it is sent arrives
...     hosts.slow("worker")
...     hosts.heal()
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import count
from typing import Self

from support.network import OURS

_numbers = count()
HERE = "here"
"""The host of the process itself."""
NOWHERE = "02:00:00:00:00:01"
SLOW = ("rate", "512kbit", "burst", "32kb", "latency", "500ms")


@dataclass(frozen=True)
class Host:
    """A host with its network device. ``namespace`` is empty for the machine itself."""

    namespace: str
    address: str
    device: str
    mac: str

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix of a command that runs on this host."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}") if self.namespace else ()

    def run(self, *command: str) -> None:
        """Run ``ip`` or ``tc`` for this host."""
        _run(*self.inside, *command)


class Hosts:
    """Hosts with these names, and ``here``."""

    def __init__(self, *names: str) -> None:
        self._names = names
        number = os.getpid() * 8 + next(_numbers) % 8
        self._tag = f"ant{number}"
        self._net = f"10.{200 + number % 50}.{number // 50 % 250}"
        self._hosts: dict[str, Host] = {}
        self._lost: set[tuple[str, str]] = set()
        self._slow: set[str] = set()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def names(self) -> list[str]:
        return [*self._hosts]

    def __enter__(self) -> Self:
        OURS.add(IPv4Network(f"{self._net}.0/24"))
        try:
            _run("ip", "link", "add", self._tag, "type", "bridge")
            _run("ip", "address", "add", f"{self._net}.1/24", "dev", self._tag)
            _run("ip", "link", "set", self._tag, "up")
            for number, name in enumerate(self._names, start=2):
                self._hosts[name] = self._join(number)
            mac = _mac_of(self._tag)
            self._hosts[HERE] = Host("", f"{self._net}.1", self._tag, mac)
            for one in self._hosts:
                for other in self._hosts:
                    self._aim(one, other, self[other].mac)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        OURS.discard(IPv4Network(f"{self._net}.0/24"))
        for name in os.listdir("/run/netns") if self._names else []:
            if name.startswith(f"{self._tag}-"):
                _run("ip", "netns", "delete", name)
        if os.path.exists(f"/sys/class/net/{self._tag}"):
            _run("ip", "link", "delete", self._tag)

    def part(self, one: str, other: str) -> None:
        """Lose all traffic between two hosts."""
        self.part_one_way(one, other)
        self.part_one_way(other, one)

    def part_one_way(self, sender: str, receiver: str) -> None:
        """Lose what one host sends to another."""
        self._lost.add((sender, receiver))
        self._aim(sender, receiver, NOWHERE)

    def slow(self, name: str) -> None:
        """Let a host send at most 512 kbit/s."""
        self._slow.add(name)
        self[name].run("tc", "qdisc", "replace", "dev", self[name].device, "root", "tbf", *SLOW)

    def heal(self) -> None:
        """Let everything pass again."""
        for sender, receiver in self._lost:
            self._aim(sender, receiver, self[receiver].mac)
        for name in self._slow:
            self[name].run("tc", "qdisc", "delete", "dev", self[name].device, "root")
        self._lost, self._slow = set(), set()

    def _join(self, number: int) -> Host:
        name, outside, address = f"{self._tag}-{number}", f"{self._tag}x{number}", f"{self._net}.{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", outside, "master", self._tag, "up")
        host = Host(name, address, "eth0", _mac_of("eth0", name))
        host.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            host.run("ip", "link", "set", device, "up")
        return host

    def _aim(self, sender: str, receiver: str, mac: str) -> None:
        """Direct what one host sends to another to this device."""
        if sender != receiver:
            host, address = self[sender], self[receiver].address
            host.run(
                "ip", "neighbour", "replace", address, "lladdr", mac, "dev", host.device, "nud", "permanent"
            )


def why_no_hosts() -> str:
    """Return why this process cannot create hosts; '' if it can."""
    if os.name != "posix" or shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 is not installed"
    try:
        with Hosts("probe") as hosts:
            hosts.slow("probe")
    except (OSError, subprocess.CalledProcessError) as exc:
        return f"network namespaces are not permitted here ({exc})"
    return ""


def _mac_of(device: str, namespace: str = "") -> str:
    command = ("ip", *(("-netns", namespace) if namespace else ()), "-json", "link", "show", device)
    return json.loads(_run(*command))[0]["address"]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
