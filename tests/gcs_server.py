"""A bucket in memory, behind the part of Google's JSON API that a run uses.

Not a mock of our code: gcsfs and tensorstore talk to it over HTTP. No package
serves: gcp-storage-emulator ignores conditions on generations and Google's own
storage-testbench is not on PyPI.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import sys
import threading
import urllib.parse

BUCKET = "bucket"
PAGE = 5  # names in one answer: longer lists come in pages


class Refused(Exception):
  """An answer that is an error; the code."""


def crc32c(content):
  """The checksum that Google's client compares."""
  import google_crc32c  # comes with gcsfs
  return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


class Store:
  """name -> (content, generation, metadata), and uploads that are under way."""

  def __init__(self):
    self.objects, self.uploads, self.last = {}, {}, 1_000_000
    self.lock = threading.RLock()

  def put(self, name, content, query, metadata):
    with self.lock:
      wanted = query.get("ifGenerationMatch")
      there = self.objects[name][1] if name in self.objects else 0
      if wanted is not None and int(wanted) != there:
        raise Refused(412)
      self.last += 1
      self.objects[name] = content, self.last, metadata
      return self.resource(name)

  def get(self, name):
    if name not in self.objects:
      raise Refused(404)
    return self.objects[name]

  def delete(self, name, query):
    with self.lock:
      generation = self.get(name)[1]
      if query.get("ifGenerationMatch", str(generation)) != str(generation):
        raise Refused(412)
      del self.objects[name]

  def resource(self, name):
    content, generation, metadata = self.get(name)
    return {"kind": "storage#object", "name": name, "bucket": BUCKET,
            "generation": str(generation), "metageneration": "1",
            "size": str(len(content)), "metadata": metadata,
            "updated": "2026-01-01T00:00:00.000Z",
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "crc32c": crc32c(content)}

  def listing(self, query):
    prefix, slash = query.get("prefix", ""), query.get("delimiter", "")
    entries = {}
    for name in sorted(self.objects):
      if not name.startswith(prefix):
        continue
      head, found, _ = name[len(prefix):].partition(slash) if slash else (
          "", "", "")
      entries[prefix + head + slash if found else name] = bool(found)
    after = query.get("pageToken", "")
    names = [name for name in entries if name > after]
    page = names[:min(PAGE, int(query.get("maxResults", PAGE)))]
    out = {"kind": "storage#objects",
           "items": [self.resource(n) for n in page if not entries[n]],
           "prefixes": [n for n in page if entries[n]]}
    return out | ({"nextPageToken": page[-1]} if len(names) > len(page) else {})


class Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True  # or each answer waits 40 ms for an ACK

  def log_message(self, *args):
    pass

  def answer(self, code, content=b"", headers=()):
    if not isinstance(content, bytes):
      content = json.dumps(content).encode()
      headers = [*headers, ("Content-Type", "application/json")]
    self.send_response(code)
    for name, value in headers:
      self.send_header(name, value)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  def handle_any(self):
    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
    url = urllib.parse.urlsplit(self.path)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    try:
      with self.server.store.lock:
        self.route(url.path, query, body)
    except Refused as refused:
      code = refused.args[0]
      self.answer(code, {"error": {
          "code": code, "message": f"refused {self.path}"}})

  do_GET = do_POST = do_PUT = do_DELETE = handle_any

  def route(self, path, query, body):
    match = re.fullmatch(
        r"(/upload|/download)?/storage/v1/b/([^/]+)(?:(/o)(?:/(.+))?)?", path)
    if match is None:
      raise Refused(501)
    kind, bucket, objects, name = match.groups()
    if bucket != BUCKET:
      raise Refused(403 if bucket == "secret" else 404)
    if not objects:
      return self.answer(200, {"kind": "storage#bucket", "name": bucket})
    if kind == "/upload":
      return self.upload(query, body)
    store = self.server.store
    if name is None:
      return self.answer(200, store.listing(query))
    moved = re.fullmatch(r"([^/]+)/moveTo/o/([^/]+)", name)
    if moved:
      source, target = map(urllib.parse.unquote, moved.groups())
      content, _, metadata = store.get(source)
      store.delete(source, {})
      return self.answer(200, store.put(target, content, {}, metadata))
    name = urllib.parse.unquote(name)
    if self.command == "DELETE":
      store.delete(name, query)
      return self.answer(204)
    if query.get("alt") != "media":
      return self.answer(200, store.resource(name))
    return self.media(*store.get(name)[:2])

  def media(self, content, generation):
    headers = [("x-goog-generation", str(generation)),
               ("X-Goog-Hash", f"crc32c={crc32c(content)}"),
               ("Content-Type", "application/octet-stream")]
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
    if wanted is None:
      return self.answer(200, content, headers)
    size = len(content)
    first = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
    last = int(wanted[2]) if wanted[1] and wanted[2] else size - 1
    last = min(last, size - 1)
    return self.answer(206, content[first:last + 1], [
        *headers, ("Content-Range", f"bytes {first}-{last}/{size}")])

  def upload(self, query, body):
    store = self.server.store
    if query["uploadType"] == "media":
      return self.answer(200, store.put(query["name"], body, query, {}))
    if "upload_id" not in query:
      fields = json.loads(body or b"{}")
      key = str(len(store.uploads))
      store.uploads[key] = (query.get("name") or fields["name"], b"", query,
                            fields.get("metadata", {}))
      host = self.headers["Host"]
      return self.answer(200, b"", [("Location", (
          f"http://{host}/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&"
          f"upload_id={key}"))])
    name, content, first, metadata = store.uploads[query["upload_id"]]
    content += body
    store.uploads[query["upload_id"]] = name, content, first, metadata
    return self.answer(200, store.put(name, content, first, metadata))


class Server(http.server.ThreadingHTTPServer):
  daemon_threads, block_on_close = True, False

  def handle_error(self, request, client_address):
    # gcsfs asks twice and hangs up on the slower one.
    if not isinstance(sys.exc_info()[1], ConnectionError):
      super().handle_error(request, client_address)


@contextlib.contextmanager
def started():
  """(A server, the environment in which all clients take it for Google's)."""
  with Server(("127.0.0.1", 0), Handler) as server:
    server.store = Store()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, clients_of(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()


def clients_of(url):
  return {"STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url,
          "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
          # or gcsfs asks Google itself what kind of bucket it is
          "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
