"""What W&B's GraphQL is asked, as seen of client 0.31, and what a server of this machine answers: one method an operation."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

ENTITY = "someone"
TIME = "2026-01-01T00:00:00"


@dataclass
class Stored:
    """A run as the server has it."""

    name: str
    project: str
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)  # of its history, by their offset
    files: dict[str, bytes] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)  # displayName, groupName, jobType, tags
    state: str = "running"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its history without what the client adds."""
        rows = [json.loads(self.lines[offset]) for offset in sorted(self.lines)]
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    @property
    def values(self) -> dict[str, Any]:
        """Its config without what the client adds."""
        return {name: each["value"] for name, each in self.config.items() if name != "_wandb"}

    @property
    def tags(self) -> list[str]:
        return self.told.get("tags") or []

    def node(self) -> dict[str, Any]:
        """What a listing says of it."""
        return {
            "id": f"id-{self.name}", "name": self.name, "displayName": self.told.get("displayName"), "sweepName": None,
            "tags": self.tags, "state": self.state, "config": json.dumps(self.config), "group": self.told.get("groupName"),
            "jobType": self.told.get("jobType"), "commit": None, "readOnly": False, "createdAt": TIME,
            "heartbeatAt": TIME, "description": None, "notes": None, "systemMetrics": "{}",
            "summaryMetrics": json.dumps(self.summary), "historyLineCount": len(self.lines),
            "user": {"name": ENTITY, "username": ENTITY}, "historyKeys": {
                "lastStep": max((json.loads(line).get("_step", 0) for line in self.lines.values()), default=-1)
            }, "projectId": "1",
        }  # fmt: skip

    def bucket(self) -> dict[str, Any]:
        """What a client hears that makes it or goes on with it."""
        place = {"id": "p", "name": self.project, "entity": {"id": "e", "name": ENTITY}}
        tail = [self.lines[offset] for offset in sorted(self.lines)[-1:]]
        return self.node() | {
            "project": place, "logLineCount": 0, "eventsLineCount": 0, "historyTail": json.dumps(tail or ['{"_step": 0}']),
            "eventsTail": "[]", "wandbConfig": '{"t": {}}',
        }  # fmt: skip


class Operations:
    """All that a server keeps, and its answers: `do_NAME` for the operation of that name."""

    url: str

    def __init__(self) -> None:
        self.runs: dict[str, Stored] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.projects: set[str] = set()
        self.deleted: set[str] = set()  # ids of runs that may not be used again

    def do_UpsertBucket(self, told: dict[str, Any]) -> Any:
        name = told.get("name") or str(told["id"]).removeprefix("id-")
        if name in self.deleted:
            raise ValueError(f"run {name} was previously created and deleted; try a new run name")
        new = name not in self.runs
        run = self.runs.setdefault(name, Stored(name, told.get("project") or ""))
        self.projects.add(run.project)
        if told.get("config"):
            run.config = json.loads(told["config"])
        if told.get("summaryMetrics"):
            run.summary = json.loads(told["summaryMetrics"])
        display = told.get("displayName") or told.get("display_name")
        fields = {"displayName": display, "groupName": told.get("groupName"), "jobType": told.get("jobType")}
        run.told |= {k: v for k, v in fields.items() if v is not None}
        if told.get("tags") is not None:
            run.told["tags"] = told["tags"]
        return {"upsertBucket": {"bucket": run.bucket(), "inserted": new}}

    def do_RunResumeStatus(self, told: dict[str, Any]) -> Any:
        run = self.runs.get(told["name"])
        return {"model": {"id": "p", "name": told["project"], "entity": {"id": "e", "name": ENTITY},
                          "bucket": run.bucket() if run else None}}  # fmt: skip

    def do_Runs(self, told: dict[str, Any]) -> Any:
        if told["project"] not in self.projects:
            return {"project": None}
        wanted = json.loads(told.get("filters") or "{}")
        runs = [run for run in self.runs.values() if run.project == told["project"] and _fits(run, wanted)]
        begin = int(told.get("cursor") or 0)
        some = runs[begin : begin + int(told.get("perPage") or 50)]
        end = begin + len(some)
        page = {"endCursor": str(end), "hasNextPage": end < len(runs)}
        edges = [{"node": run.node(), "cursor": str(begin + i + 1)} for i, run in enumerate(some)]
        found = {"edges": edges, "pageInfo": page}
        return {"project": {"internalId": "1", "runCount": len(runs), "readOnly": False, "runs": found}}

    def do_Run(self, told: dict[str, Any]) -> Any:
        run = self.runs.get(told["name"])
        return {"project": {"run": run.node() if run else None}}

    def do_RunFullHistory(self, told: dict[str, Any]) -> Any:
        run = self.runs[told["name"]]
        return {"project": {"run": {"history": [run.lines[offset] for offset in sorted(run.lines)]}}}

    def do_RunFiles(self, told: dict[str, Any]) -> Any:
        run = self.runs[told["name"]]
        wanted = told.get("fileNames") or list(run.files)
        nodes = [
            {"id": name, "name": name, "url": f"{self.url}/kept/{run.name}/{name}", "directUrl": "", "mimetype": "",
             "sizeBytes": len(run.files[name]), "updatedAt": None, "md5": ""} for name in run.files if name in wanted
        ]  # fmt: skip
        page = {"endCursor": None, "hasNextPage": False}
        files = {"edges": [{"node": node, "cursor": ""} for node in nodes], "pageInfo": page}
        return {"project": {"internalId": "1", "run": {"fileCount": len(nodes), "files": files}}}

    def do_CreateRunFiles(self, told: dict[str, Any]) -> Any:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/kept/{told['run']}/{name}"} for name in told["files"]
        ]
        return {"createRunFiles": {"runID": told["run"], "uploadHeaders": [], "files": files}}

    def do_CreateArtifact(self, told: dict[str, Any]) -> Any:
        put = told["input"]
        name = f"a{len(self.artifacts)}"
        same = [k for k, v in self.artifacts.items() if v["state"] == "COMMITTED" and v["digest"] == put["digest"]
                and v["artifactCollectionName"] == put["artifactCollectionName"]]  # fmt: skip
        name = same[0] if same else name
        self.artifacts.setdefault(name, put | {"id": name, "state": "PENDING", "files": {}, "users": []})
        self.artifacts[name]["users"].append(put.get("runName"))
        return {"createArtifact": {"artifact": {
            "id": name, "state": self.artifacts[name]["state"], "artifactSequence": {"id": "s", "latestArtifact": None}
        }}}  # fmt: skip

    def do_CreateArtifactManifest(self, told: dict[str, Any]) -> Any:
        upload = self._upload(f"manifest/{told['artifactID']}")
        return {
            "createArtifactManifest": {"artifactManifest": {"id": f"m-{told['artifactID']}", "file": upload}}
        }

    def do_CreateArtifactFiles(self, told: dict[str, Any]) -> Any:
        edges = []
        for each in told["input"]["artifactFiles"]:
            upload = self._upload(f"{each['artifactID']}/{each['name']}")
            edges.append({"node": upload | {"storagePath": "x", "uploadMultipartUrls": None, "artifact": {"id": "a"},
                                            "displayName": each["name"]}})  # fmt: skip
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def do_CommitArtifact(self, told: dict[str, Any]) -> Any:
        found = self.artifacts[told["artifactID"]]
        found["state"] = "COMMITTED"
        return {"commitArtifact": {"artifact": {"id": found["id"], "digest": found["digest"]}}}

    def do_RunOutputArtifacts(self, told: dict[str, Any]) -> Any:
        project = {"id": "p", "internalId": "1", "name": told["project"], "entity": {"name": ENTITY}}
        nodes = [
            {
                "id": kept["id"], "artifactSequence": {"name": kept["artifactCollectionName"], "project": project},
                "versionIndex": 0, "artifactType": {"name": kept["artifactTypeName"]}, "description": None, "metadata": None,
                "ttlDurationSeconds": -1, "ttlIsInherited": True, "tags": [], "historyStep": None, "state": kept["state"],
                "size": 1, "digest": kept["digest"], "commitHash": None, "fileCount": 1, "createdAt": TIME, "updatedAt": None,
                "aliases": [],
            }
            for kept in self.artifacts.values() if told["run"] in kept["users"]
        ]  # fmt: skip
        page = {"endCursor": None, "hasNextPage": False}
        found = {"totalCount": len(nodes), "pageInfo": page, "edges": [{"node": node} for node in nodes]}
        return {"project": {"run": {"artifacts": found}}}

    def do_ArtifactType(self, _told: dict[str, Any]) -> Any:
        return {"project": {"artifact": None}}

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

    def do_UpsertView2(self, told: dict[str, Any]) -> Any:
        new = not told.get("id")
        name = told.get("id") or base64.b64encode(f"View:{len(self.views)}".encode()).decode()
        self.views[name] = self.views.get(name, {}) | told | {"id": name}
        kept = self.views[name]
        project = {"id": "p", "name": kept["projectName"], "entityName": kept["entityName"]}
        view = {k: kept.get(k) for k in ("id", "type", "name", "displayName", "description", "spec")}
        return {"upsertView": {"view": view | {"project": project, "updatedAt": TIME}, "inserted": new}}

    do_upsertView = do_UpsertView2

    def do_View(self, told: dict[str, Any]) -> Any:
        found = [
            v for v in self.views.values() if v["type"] == told["viewType"] and v["name"] == told["viewName"]
        ]
        nodes = [{k: view[k] for k in ("id", "displayName", "spec")} for view in found]
        return {"project": {"allViews": {"edges": [{"node": node} for node in nodes]}}}

    def do_ProjectInternalId(self, told: dict[str, Any]) -> Any:
        return {"project": {"internalId": "1"} if told["projectName"] in self.projects else None}

    def do_ProjectViews(self, told: dict[str, Any]) -> Any:
        found = [view for view in self.views.values() if view["type"] == told.get("viewType", "runs")]
        user = {"username": ENTITY, "photoUrl": "", "email": ""}
        times = {"updatedAt": TIME, "createdAt": TIME}
        kept = ("id", "name", "displayName", "description", "spec")
        edges = [
            {"node": {k: view.get(k) for k in kept} | times | {"user": user}, "cursor": ""} for view in found
        ]
        page = {"endCursor": None, "hasNextPage": False}
        return {"project": {"allViews": {"edges": edges, "pageInfo": page}}}

    def do_SpecificReport(self, told: dict[str, Any]) -> Any:
        view = self.views[told["reportId"]]
        project = {"id": "p", "name": view["projectName"], "entityName": view["entityName"]}
        kept = {k: view.get(k) for k in ("id", "name", "displayName", "description", "spec")}
        times = {"updatedAt": TIME, "createdAt": TIME}
        return {"view": kept | times | {"project": project}}

    def _upload(self, place: str) -> dict[str, Any]:
        return {
            "id": "f",
            "uploadUrl": f"{self.url}/artifacts/{place}",
            "uploadHeaders": [],
            "name": "n",
            "displayName": "n",
        }


def _fits(run: Stored, wanted: dict[str, Any]) -> bool:
    """Whether a run is as a filter wants it: equality only."""
    values = run.node() | {f"config.{name}": value for name, value in run.values.items()}
    return all(values.get(name.removesuffix(".value")) == value for name, value in wanted.items())
