"""JSON schemas of the files in deploy/, as far as these files use the documented keys; anything else is refused.

KubeRay's are those of its RayJob API `ray.io/v1` and of Kubernetes' pods, SkyPilot's those of its task YAML, GitHub's
those of its workflow syntax.
"""


def record(required=(), **properties):
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        "minProperties": 1,
    }


TEXT, NUMBER, YES_NO = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def listed(items):
    return {"type": "array", "items": items, "minItems": 1}


QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti)?$"}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
CONTAINER = record(
    ("name", "image"),
    name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
    image=TEXT,
    env=listed(record(("name",), name=TEXT, value=TEXT)),
    ports=listed(record(("containerPort",), name={"type": "string", "maxLength": 15}, containerPort=NUMBER)),
    resources=record(limits=QUANTITIES, requests=QUANTITIES),
    volumeMounts=listed(record(("name", "mountPath"), name=TEXT, mountPath=TEXT)),
)
VOLUME = record(
    ("name",),
    name=TEXT,
    persistentVolumeClaim=record(("claimName",), claimName=TEXT),
    emptyDir=record(medium={"enum": ["Memory", ""]}, sizeLimit=QUANTITY),
)
POD = record(
    ("spec",),
    spec=record(
        ("containers",),
        containers=listed(CONTAINER),
        volumes=listed(VOLUME),
        terminationGracePeriodSeconds=NUMBER,
    ),
)
PARAMETERS = {"type": "object", "additionalProperties": TEXT}  # of `ray start`: numbers are quoted
RAY_JOB = record(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=record(("name",), name=TEXT),
    spec=record(
        ("entrypoint", "rayClusterSpec"),
        entrypoint=TEXT,
        backoffLimit=NUMBER,
        shutdownAfterJobFinishes=YES_NO,
        ttlSecondsAfterFinished=NUMBER,
        rayClusterSpec=record(
            ("headGroupSpec", "workerGroupSpecs"),
            rayVersion=TEXT,
            headGroupSpec=record(("template",), rayStartParams=PARAMETERS, template=POD),
            workerGroupSpecs=listed(
                record(
                    ("groupName", "template"),
                    groupName=TEXT,
                    replicas=NUMBER,
                    minReplicas=NUMBER,
                    maxReplicas=NUMBER,
                    rayStartParams=PARAMETERS,
                    template=POD,
                )
            ),
        ),
    ),
)

SKY_TASK = record(
    ("resources", "run"),
    name=TEXT,
    resources=record(
        accelerators={"type": "string", "pattern": r"^[A-Za-z0-9-]+:[0-9]+$"},
        use_spot=YES_NO,
        job_recovery=record(strategy={"enum": ["FAILOVER", "EAGER_NEXT_REGION"]}, max_restarts_on_errors=NUMBER),
    ),
    num_nodes=NUMBER,
    workdir=TEXT,
    volumes={"type": "object", "additionalProperties": TEXT, "propertyNames": {"pattern": "^/"}},
    envs=TEXTS,
    setup=TEXT,
    run=TEXT,
)

# PyYAML reads the key `on` as True.
STEP = record(uses=TEXT, run=TEXT, name=TEXT, **{"with": TEXTS, "continue-on-error": YES_NO})
WORKFLOW_JOB = record(
    ("runs-on", "steps"),
    steps=listed(STEP),
    **{
        "runs-on": TEXT,
        "timeout-minutes": NUMBER,
        "if": TEXT,
        "env": TEXTS,
        "strategy": record(("matrix",), matrix={"type": "object"}, **{"fail-fast": YES_NO}),
    },
)
WORKFLOW = record(
    ("name", "on", "jobs"),
    name=TEXT,
    on={
        "type": "object",
        "propertyNames": {"enum": ["push", "pull_request", "workflow_dispatch", "schedule"]},
    },
    permissions=TEXTS,
    concurrency=record(("group",), group=TEXT, **{"cancel-in-progress": YES_NO}),
    jobs={"type": "object", "additionalProperties": WORKFLOW_JOB, "minProperties": 1},
)

# Of `sbatch`, those that a script of one run needs.
SBATCH = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "gpus-per-node",
    "cpus-per-task",
    "mem",
    "time",
    "requeue",
    "open-mode",
    "output",
    "signal",
    "partition",
    "account",
    "qos",
}
