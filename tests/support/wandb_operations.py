"""The GraphQL operations of W&B as seen from client 0.31, and the answers of a test server: one method per operation."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

ENTITY = "someone"
TIME = "2026-01-01T00:00:00"
LIMITS = {"displayName": 128, "display_name": 128, "groupName": 128, "jobType": 64}  # characters


@dataclass
class StoredRun:
    """A run as the server stores it."""

    name: str
    project: str
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)  # lines of the history by offset
    metadata: dict[str, Any] = field(default_factory=dict)  # displayName, groupName, jobType, tags
    state: str = "running"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the history without the fields that the client adds."""
        rows = [json.loads(self.lines[offset]) for offset in sorted(self.lines)]
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    @property
    def values(self) -> dict[str, Any]:
        """Return the config without the fields that the client adds."""
        return {name: entry["value"] for name, entry in self.config.items() if name != "_wandb"}

    @property
    def tags(self) -> list[str]:
        return self.metadata.get("tags") or []

    def node(self) -> dict[str, Any]:
        """Return the run as it appears in a listing."""
        return {
            "id": f"id-{self.name}", "name": self.name, "displayName": self.metadata.get("displayName"), "sweepName": None,
            "tags": self.tags, "state": self.state, "config": json.dumps(self.config), "group": self.metadata.get("groupName"),
            "jobType": self.metadata.get("jobType"), "commit": None, "readOnly": False, "createdAt": TIME,
            "heartbeatAt": TIME, "description": None, "notes": None, "systemMetrics": "{}",
            "summaryMetrics": json.dumps(self.summary), "historyLineCount": len(self.lines),
            "user": {"name": ENTITY, "username": ENTITY}, "historyKeys": {
                "lastStep": max((json.loads(line).get("_step", 0) for line in self.lines.values()), default=-1)
            }, "projectId": "1",
        }  # fmt: skip

    def bucket(self) -> dict[str, Any]:
        """Return the run as a client receives it when it creates or resumes the run."""
        project = {"id": "p", "name": self.project, "entity": {"id": "e", "name": ENTITY}}
        tail = [self.lines[offset] for offset in sorted(self.lines)[-1:]]
        return self.node() | {
            "project": project, "logLineCount": 0, "eventsLineCount": 0, "historyTail": json.dumps(tail or ['{"_step": 0}']),
            "eventsTail": "[]", "wandbConfig": '{"t": {}}',
        }  # fmt: skip


class Operations:
    """The data of a server and its answers: method `do_NAME` for the operation NAME."""

    url: str

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.projects: set[str] = set()
        self.deleted: set[str] = set()  # ids of runs that must not be used again

    def do_UpsertBucket(self, variables: dict[str, Any]) -> Any:
        name = variables.get("name") or str(variables["id"]).removeprefix("id-")
        if name in self.deleted:
            raise ValueError(f"run {name} was previously created and deleted; try a new run name")
        for label, limit in LIMITS.items():
            if len(variables.get(label) or "") > limit:
                raise ValueError(f"Data too long for {label}")
        new = name not in self.runs
        run = self.runs.setdefault(name, StoredRun(name, variables.get("project") or ""))
        self.projects.add(run.project)
        if variables.get("config"):
            run.config = json.loads(variables["config"])
        if variables.get("summaryMetrics"):
            run.summary = json.loads(variables["summaryMetrics"])
        display = variables.get("displayName") or variables.get("display_name")
        fields = {"displayName": display} | {k: variables.get(k) for k in ("groupName", "jobType")}
        run.metadata |= {k: v for k, v in fields.items() if v is not None}
        if variables.get("tags") is not None:
            run.metadata["tags"] = variables["tags"]
        return {"upsertBucket": {"bucket": run.bucket(), "inserted": new}}

    def do_RunResumeStatus(self, variables: dict[str, Any]) -> Any:
        run = self.runs.get(variables["name"])
        return {"model": {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": ENTITY},
                          "bucket": run.bucket() if run else None}}  # fmt: skip

    def do_Runs(self, variables: dict[str, Any]) -> Any:
        if variables["project"] not in self.projects:
            return {"project": None}
        filters = json.loads(variables.get("filters") or "{}")
        runs = [
            run
            for run in self.runs.values()
            if run.project == variables["project"] and _matches_filters(run, filters)
        ]
        begin = int(variables.get("cursor") or 0)
        selected = runs[begin : begin + int(variables.get("perPage") or 50)]
        end = begin + len(selected)
        page = {"endCursor": str(end), "hasNextPage": end < len(runs)}
        edges = [{"node": run.node(), "cursor": str(begin + i + 1)} for i, run in enumerate(selected)]
        listing = {"edges": edges, "pageInfo": page}
        return {"project": {"internalId": "1", "runCount": len(runs), "readOnly": False, "runs": listing}}

    def do_Run(self, variables: dict[str, Any]) -> Any:
        run = self.runs.get(variables["name"])
        return {"project": {"run": run.node() if run else None}}

    def do_RunFullHistory(self, variables: dict[str, Any]) -> Any:
        run = self.runs[variables["name"]]
        return {"project": {"run": {"history": [run.lines[offset] for offset in sorted(run.lines)]}}}

    def do_CreateRunFiles(self, variables: dict[str, Any]) -> Any:
        files = [{"name": name, "uploadUrl": f"{self.url}/files/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def do_Viewer(self, _told: dict[str, Any]) -> Any:
        return {"viewer": {"id": "v", "entity": ENTITY, "username": ENTITY, "name": ENTITY, "flags": "{}", "email": "",
                           "admin": False, "teams": {"edges": []}, "apiKeys": {"edges": []}}}  # fmt: skip

    do_GetViewer = do_GetDefaultEntity = do_Viewer

    def do_ServerFeaturesQuery(self, _told: dict[str, Any]) -> Any:
        return {"serverInfo": {"features": []}}

    def do_GetProjects(self, _told: dict[str, Any]) -> Any:
        nodes = [{"id": "p", "name": name, "entityName": ENTITY, "createdAt": TIME, "isBenchmark": False, "user": None}
                 for name in sorted(self.projects)]  # fmt: skip
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"pageInfo": page, "edges": [{"cursor": "", "node": node} for node in nodes]}}

    def do_UpsertView2(self, variables: dict[str, Any]) -> Any:
        new = not variables.get("id")
        name = variables.get("id") or base64.b64encode(f"View:{len(self.views)}".encode()).decode()
        self.views[name] = self.views.get(name, {}) | variables | {"id": name}
        stored = self.views[name]
        project = {"id": "p", "name": stored["projectName"], "entityName": stored["entityName"]}
        view = {k: stored.get(k) for k in ("id", "type", "name", "displayName", "description", "spec")}
        return {"upsertView": {"view": view | {"project": project, "updatedAt": TIME}, "inserted": new}}

    do_upsertView = do_UpsertView2

    def do_View(self, variables: dict[str, Any]) -> Any:
        views = [
            v
            for v in self.views.values()
            if v["type"] == variables["viewType"] and v["name"] == variables["viewName"]
        ]
        nodes = [{k: view[k] for k in ("id", "displayName", "spec")} for view in views]
        return {"project": {"allViews": {"edges": [{"node": node} for node in nodes]}}}

    def do_ProjectInternalId(self, variables: dict[str, Any]) -> Any:
        return {"project": {"internalId": "1"} if variables["projectName"] in self.projects else None}

    def do_ProjectViews(self, variables: dict[str, Any]) -> Any:
        views = [view for view in self.views.values() if view["type"] == variables.get("viewType", "runs")]
        user = {"username": ENTITY, "photoUrl": "", "email": ""}
        times = {"updatedAt": TIME, "createdAt": TIME}
        fields = ("id", "name", "displayName", "description", "spec")
        edges = [
            {"node": {k: view.get(k) for k in fields} | times | {"user": user}, "cursor": ""}
            for view in views
        ]
        page = {"endCursor": None, "hasNextPage": False}
        return {"project": {"allViews": {"edges": edges, "pageInfo": page}}}

    def do_SpecificReport(self, variables: dict[str, Any]) -> Any:
        view = self.views[variables["reportId"]]
        project = {"id": "p", "name": view["projectName"], "entityName": view["entityName"]}
        fields = {k: view.get(k) for k in ("id", "name", "displayName", "description", "spec")}
        times = {"updatedAt": TIME, "createdAt": TIME}
        return {"view": fields | times | {"project": project}}


def _matches_filters(run: StoredRun, filters: dict[str, Any]) -> bool:
    """Return whether a run equals the filters, which are equalities only."""
    values = run.node() | {f"config.{name}": value for name, value in run.values.items()}
    return all(values.get(name.removesuffix(".value")) == value for name, value in filters.items())
