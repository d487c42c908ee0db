"""The API of the fake cluster, as a Starlette application."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from typing import Any

import kubernetes_validate
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tests.fake_cluster import pods
from tests.fake_cluster.execution import execute
from tests.fake_cluster.store import Object, Store, public

TOKEN = "a-token-of-the-tests"
SCHEMA = "1.31"
EXTENSIONS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{namespace}"
PODS = "/api/v1/namespaces/{namespace}/pods"


class FakeCluster:
    """One namespace, whatever it is called."""

    def __init__(self) -> None:
        self.pods, self.claims, self.pools, self.sandboxes = Store(), Store(), Store(), Store()
        self.kubelet = pods.Kubelet(self.pods.change)
        self.calls: list[str] = []
        self.refusals: list[tuple[int, str]] = []
        """Statuses and messages for the next requests that make something."""

    def app(self) -> Starlette:
        """The routes."""
        return Starlette(
            routes=[
                Route(PODS, self.create_pod, methods=["POST"]),
                Route(PODS, self.list_pods),
                Route(PODS + "/{name}", self.pod, methods=["GET", "DELETE"]),
                Route(PODS + "/{name}/log", self.log),
                WebSocketRoute(PODS + "/{name}/exec", self.execute),
                Route(EXTENSIONS + "/sandboxclaims", self.create_claim, methods=["POST"]),
                Route(EXTENSIONS + "/sandboxclaims", self.list_claims),
                Route(EXTENSIONS + "/sandboxclaims/{name}", self.delete_claim, methods=["DELETE"]),
                Route(EXTENSIONS + "/sandboxwarmpools/{name}", self.pool),
                Route("/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes/{name}", self.sandbox),
                Route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self.review, methods=["POST"]),
                Route("/api/v1/namespaces/{namespace}", self.namespace),
                Route("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", self.policies),
                Route("/version", self.version),
                Route("/fake", self.fake, methods=["GET", "POST"]),
            ]
        )

    # -- pods ---------------------------------------------------------------------------------------------------------

    async def create_pod(self, request: Request) -> Response:
        if refused := self._refused(request, "create pods"):
            return refused
        pod = await request.json()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kubernetes_validate.validate(pod, SCHEMA, strict=True)
        except kubernetes_validate.ValidationError as exc:
            return status(422, "Invalid", str(exc))
        return self._start(pod)

    def _start(self, pod: Object) -> Response:
        pod["status"] = {"phase": "Pending"}
        pod["metadata"]["creationTimestamp"] = pods.now()
        if not self.pods.add(pod):
            return status(409, "AlreadyExists", f"pods {pod['metadata']['name']!r} already exists")
        self.kubelet.run(pod["metadata"]["name"], pod)
        return JSONResponse(public(pod), 201)

    async def list_pods(self, request: Request) -> Response:
        return self._listed(request, self.pods, "pods")

    async def pod(self, request: Request) -> Response:
        verb = "delete" if request.method == "DELETE" else "get"
        if refused := self._refused(request, f"{verb} pods", may_be_told=False):
            return refused
        name = request.path_params["name"]
        if request.method == "GET":
            return shown(self.pods.find(name))
        pod = self.pods.remove(name)
        if pod:
            await asyncio.to_thread(pods.remove, pod)
        return shown(pod)

    async def log(self, request: Request) -> Response:
        if refused := self._refused(request, "get pods/log", may_be_told=False):
            return refused
        pod = self.pods.find(request.path_params["name"])
        if pod is None:
            return shown(None)
        return PlainTextResponse(await asyncio.to_thread(pods.log, pod))

    async def execute(self, websocket: WebSocket) -> None:
        self.calls.append("create pods/exec")
        pod = self.pods.find(websocket.path_params["name"])
        is_known = websocket.headers.get("authorization") == f"Bearer {TOKEN}"
        if pod is None or not is_known:
            refusal = status(404 if is_known else 401, "NotFound", "pod does not exist")
            await websocket.send_denial_response(refusal)
            return
        await execute(websocket, pod["container"])

    # -- warm pools ---------------------------------------------------------------------------------------------------

    async def create_claim(self, request: Request) -> Response:
        if refused := self._refused(request, "create sandboxclaims"):
            return refused
        claim = await request.json()
        pool = self.pools.find(claim["spec"]["warmPoolRef"]["name"])
        waiting = pool["waiting"] if pool else []
        if not self.claims.add(claim):
            return status(409, "AlreadyExists", "it already exists")
        if waiting:
            self._adopt(claim, waiting.pop())
            pool["status"]["readyReplicas"] = len(waiting)
        return JSONResponse(claim, 201)

    def _adopt(self, claim: Object, pod_name: str) -> None:
        pod, sandbox = self.pods.find(pod_name), f"sandbox-of-{claim['metadata']['name']}"
        assert pod
        for kind, values in claim["spec"]["additionalPodMetadata"].items():
            pod["metadata"].setdefault(kind, {}).update(values)
        annotations = {"agents.x-k8s.io/pod-name": pod_name}
        self.sandboxes.add({"metadata": {"name": sandbox, "annotations": annotations}})
        ready = {"type": "Ready", "status": "True", "reason": "DependenciesReady"}
        self.claims.change(claim["metadata"]["name"], {"conditions": [ready], "sandbox": {"name": sandbox}})

    async def list_claims(self, request: Request) -> Response:
        return self._listed(request, self.claims, "sandboxclaims")

    async def delete_claim(self, request: Request) -> Response:
        if refused := self._refused(request, "delete sandboxclaims", may_be_told=False):
            return refused
        claim = self.claims.remove(request.path_params["name"])
        for pod in self.pods.selected():
            if pod["metadata"].get("annotations", {}).get("agent-tools/claim") == request.path_params["name"]:
                self.pods.remove(pod["metadata"]["name"])
                await asyncio.to_thread(pods.remove, pod)
        return shown(claim)

    async def pool(self, request: Request) -> Response:
        refused = self._refused(request, "get sandboxwarmpools", may_be_told=False)
        return refused or shown(self.pools.find(request.path_params["name"]))

    async def sandbox(self, request: Request) -> Response:
        refused = self._refused(request, "get sandboxes", may_be_told=False)
        return refused or shown(self.sandboxes.find(request.path_params["name"]))

    # -- what `doctor` asks -------------------------------------------------------------------------------------------

    async def review(self, request: Request) -> Response:
        asked = (await request.json())["spec"]["resourceAttributes"]
        return JSONResponse({"status": {"allowed": asked["resource"] != "secrets"}}, 201)

    async def namespace(self, request: Request) -> Response:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        return JSONResponse({"metadata": {"name": request.path_params["namespace"], "labels": labels}})

    async def policies(self, request: Request) -> Response:
        spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
        return JSONResponse({"items": [{"metadata": {"name": "deny-all"}, "spec": spec}]})

    async def version(self, request: Request) -> Response:
        return JSONResponse({"gitVersion": "v1.31.0-fake"})

    # -- for the tests ------------------------------------------------------------------------------------------------

    async def fake(self, request: Request) -> Response:
        """Tell the calls so far, or take refusals, a pool, or a status."""
        if request.method == "GET":
            return JSONResponse({"calls": sorted(set(self.calls))})
        body = await request.json()
        self.refusals += [tuple(each) for each in body.get("refusals", [])]
        for name, value in body.get("statuses", {}).items():
            self.pods.change(name, value)
        if pool := body.get("pool"):
            self._fill(*pool)
        return JSONResponse({})

    def _fill(self, template: Object, pool: Object) -> None:
        """Do as the controller of agent-sandbox: make the pods of a pool."""
        pool["waiting"] = []
        for number in range(pool["spec"]["replicas"]):
            name = f"{pool['metadata']['name']}-{number}"
            found = json.loads(json.dumps(template["spec"]["podTemplate"]))
            found["metadata"]["name"] = name
            self._start({"apiVersion": "v1", "kind": "Pod", **found})
            pool["waiting"].append(name)
        pool["status"] = {"readyReplicas": len(pool["waiting"])}
        self.pools.add(pool)

    # -- all of them --------------------------------------------------------------------------------------------------

    def _refused(self, request: Request, call: str, *, may_be_told: bool = True) -> Response | None:
        self.calls.append(call)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return status(401, "Unauthorized", "Unauthorized")
        if may_be_told and self.refusals:
            code, message = self.refusals.pop(0)
            return status(code, "Forbidden", message)
        return None

    def _listed(self, request: Request, store: Store, kind: str) -> Response:
        is_watch = "watch" in request.query_params
        if refused := self._refused(request, f"{'watch' if is_watch else 'list'} {kind}", may_be_told=False):
            return refused
        labels, fields = (request.query_params.get(f"{name}Selector", "") for name in ("label", "field"))
        if is_watch:
            return StreamingResponse(watched(store, labels, fields), media_type="application/json")
        found = [public(each) for each in store.selected(labels, fields)]
        start = int(request.query_params.get("continue", "0"))
        end = start + int(request.query_params.get("limit", "500"))
        more = {"continue": str(end)} if end < len(found) else {}
        return JSONResponse({"kind": "List", "metadata": more, "items": found[start:end]})


async def watched(store: Store, labels: str, fields: str) -> AsyncIterator[bytes]:
    """Lines of events."""
    queue = store.watch(labels, fields)
    try:
        while True:
            yield json.dumps(await queue.get()).encode() + b"\n"
    finally:
        store.unwatch(queue)


def shown(found: Object | None) -> Response:
    return JSONResponse(public(found)) if found else status(404, "NotFound", "not found")


def status(code: int, reason: str, message: str) -> JSONResponse:
    headers = {"Retry-After": "0"} if code == 429 else {}
    body: dict[str, Any] = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
    return JSONResponse(body, code, headers)
