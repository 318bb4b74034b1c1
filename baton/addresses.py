"""Addresses as gRPC has them. Imports only the standard library."""

from ipaddress import AddressValueError, IPv6Address, ip_address

_SCHEMES = frozenset({"dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds"})


def to_target(address: str) -> str:
    """The gRPC target of an address: host:port, several with IP addresses by comma, or a target
    already. Raises ValueError for several that are not IP addresses."""
    places = [place.strip() for place in address.split(",")]
    if len(places) == 1 or address.partition(":")[0] in _SCHEMES:
        return address
    try:
        hosts = [ip_address(place.rpartition(":")[0].strip("[]")) for place in places]
    except ValueError:
        raise ValueError(
            f"{address!r}: several addresses by comma must be IP addresses with ports"
        ) from None
    family = "ipv6" if any(host.version == 6 for host in hosts) else "ipv4"
    return f"{family}:{','.join(places)}"


def bracketed(address: str) -> str:
    """host:port with brackets around a host that is an IPv6 address without them, as where an
    orchestrator puts a pod's address before a port; any other address as it is."""
    host, _, port = address.rpartition(":")
    try:
        IPv6Address(host)
    except AddressValueError:
        return address
    return f"[{host}]:{port}"
