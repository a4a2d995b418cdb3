"""Certificates and keys damaged where their parser looks late: found by the fuzz test (`cli/test_fuzz.py`)."""

import base64
import ssl
from pathlib import Path

import pytest

from sofed_flwr.fleet.provision import certificates
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.trust import authority_faults, device_key_fault, key_fault, server_faults

P256, UNKNOWN = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030177")
VERSION_3, VERSION_4 = bytes.fromhex("a003020102"), bytes.fromhex("a003020103")
KEY_IDENTIFIER, CONSTRAINTS = bytes.fromhex("0603551d0e"), bytes.fromhex("0603551d13")


def changed(certificate: Path, before: bytes, after: bytes) -> bytes:
    content = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    assert before in content
    certificate.write_text(ssl.DER_cert_to_PEM_cert(content.replace(before, after)))
    return certificate.read_bytes()


def test_a_certificate_of_an_unknown_curve_is_a_fault(tmp_path: Path) -> None:
    site = provision(tmp_path / "site", ["127.0.0.1"], 1)
    content = changed(site.server / "server.crt", P256, UNKNOWN)
    fault = key_fault(site.server / "server.key", content, "remedy")
    assert fault is not None
    assert "no certificate as TLS needs it" in fault.seen
    assert not certificates.is_signed_by((site.server / "ca.crt").read_bytes(), content)


def test_an_authority_with_an_extension_twice_is_a_fault(tmp_path: Path) -> None:
    site = provision(tmp_path / "site", ["127.0.0.1"], 1)
    changed(site.device(0) / "ca.crt", KEY_IDENTIFIER, CONSTRAINTS)
    (fault,) = authority_faults(site.device(0) / "ca.crt")
    assert "no certificate as TLS needs it" in fault.seen
    with pytest.raises(ValueError, match="no certificate as TLS needs it"):
        certificates.certificate_hosts((site.device(0) / "ca.crt").read_bytes())


def test_a_certificate_of_an_unknown_version_is_a_fault_and_is_made_again(tmp_path: Path) -> None:
    site = provision(tmp_path / "site", ["127.0.0.1"], 1)
    for place in (site.server / "server.crt", site.authority / "ca.crt", site.server / "ca.crt"):
        changed(place, VERSION_3, VERSION_4)
    (fault,) = authority_faults(site.server / "ca.crt")
    assert "damaged: no certificate" in fault.seen
    provision(site.directory)
    assert not list(server_faults(site.server, ["127.0.0.1"]))


def test_a_key_with_a_compressed_point_is_a_fault(tmp_path: Path) -> None:
    key = provision(tmp_path / "site", ["127.0.0.1"], 1).device(0) / "key"
    first, *lines, last = key.read_text().splitlines()
    content = base64.b64decode("".join(lines))
    point = content.index(b"nistp384", content.index(b"ecdsa-sha2-nistp384") + 19) + 12
    assert content[point] == 4
    damaged = base64.encodebytes(content[:point] + b"\x02" + content[point + 1 :]).decode()
    key.write_text(f"{first}\n{damaged}{last}\n")
    fault = device_key_fault(key)
    assert fault is not None
    assert "no private key as Flower reads it" in fault.seen
