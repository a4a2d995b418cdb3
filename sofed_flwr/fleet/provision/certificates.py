"""Identities of a federation: a certificate authority of its own, the server's certificate, a key pair per device.

Devices trust the server by the authority (TLS), the server knows a device by its public key (Flower's node
authentication). The extensions are those that Python 3.13 and OpenSSL's strict mode require.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # the longest that strict TLS clients accept
RENEW_DAYS = 60
"""A certificate with less than this left is issued again."""
WARN_DAYS = 30
"""With less than this left there is a warning at every start."""
EARLIER = timedelta(days=1)
"""Certificates are valid from a day ago, for clocks that are behind."""


def new_key() -> bytes:
    """A private key for TLS, EC P-256, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def new_device_key() -> bytes:
    """A private key of a device, EC P-384, in the OpenSSH form that Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def device_public_key(private: bytes, name: str) -> bytes:
    """The public half, as one OpenSSH line; `ValueError` if this is not a private key."""
    try:
        key = serialization.load_ssh_private_key(private, password=None).public_key()
    except (ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm):
        raise ValueError("no private key as Flower reads it") from None
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line + f" {name}\n".encode()


def authority_certificate(private: bytes, now: datetime | None = None) -> bytes:
    """The self-signed certificate of the authority, as PEM; it can be replaced by another of the same key."""
    key = _load(private)
    builder = _unsigned("sofed CA", "sofed CA", key.public_key(), AUTHORITY_DAYS, now or datetime.now(UTC))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def server_certificate(
    private: bytes, authority_private: bytes, hosts: Iterable[str], now: datetime | None = None
) -> bytes:
    """The server's certificate for all names and addresses in `hosts`, as PEM, signed by the authority."""
    key, authority = _load(private), _load(authority_private)
    builder = _unsigned("superlink", "sofed CA", key.public_key(), SERVER_DAYS, now or datetime.now(UTC))
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def new_signature(message: bytes) -> tuple[bytes, bytes]:
    """The public half of a throw-away key, as PEM, and its signature under `message`, as a Flower node signs."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return public, key.sign(message, ec.ECDSA(hashes.SHA256()))


@contextmanager
def _damage() -> Iterator[None]:
    """A certificate is parsed lazily, so damage may appear late; that is a `ValueError` as well."""
    try:
        yield
    except (UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(f"no certificate as TLS needs it ({error})") from error


@_damage()
def certificate_hosts(certificate: bytes) -> list[str]:
    """Names and addresses a server certificate is valid for."""
    try:
        names = _certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


@_damage()
def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """First and last moment; `ValueError` if this is not a certificate."""
    found = _certificate(certificate)
    return found.not_valid_before_utc, found.not_valid_after_utc


def days_left(certificate: bytes) -> float:
    """Until a certificate expires; negative when it has."""
    return (validity(certificate)[1] - datetime.now(UTC)) / timedelta(days=1)


@_damage()
def is_authority(certificate: bytes) -> bool:
    """Whether it may sign others."""
    try:
        return _certificate(certificate).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the authority issued the certificate."""
    try:
        _certificate(certificate).verify_directly_issued_by(_certificate(authority))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


@_damage()
def is_certificate_of(certificate: bytes, private: bytes) -> bool:
    """Whether certificate and private key belong together; `ValueError` if either is not one."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _certificate(certificate).public_key().public_bytes(*form) == _load(private).public_key().public_bytes(*form)


def _unsigned(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey, days: int, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    names += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{name: name in allowed for name in names})


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(content: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(content)
    except (ValueError, x509.InvalidVersion):
        raise ValueError("no certificate") from None


def _load(private: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(private, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("no private key for TLS")
    return key
