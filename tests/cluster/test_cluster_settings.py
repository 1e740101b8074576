"""Tests of cluster settings: units of memory and time, requests for GPUs, setup lines, and the nodes of a partition."""

import subprocess
import types

import pytest

from scaling.cluster import sbatch, slurm
from scaling.cluster.cluster_settings import parse_cluster_settings
from scaling.core.case import Refusal
from scaling.launcher import worker_group
from scaling.launcher.machine import Machine, ProcessShape

NODES = Machine("gpu", None, 4, 2, "of partition main", remote=True, cpus_each=16.0)


def configure(**config):
    """Return the settings of a cluster with Slurm."""
    return parse_cluster_settings({"name": "slurm"} | config)


def refuse(message, **config):
    """Check that settings are refused with a message."""
    with pytest.raises(Refusal, match=message):
        configure(**config)


def request(shape=None, machine=NODES, **config):
    """Return the options of sbatch under submitit's names."""
    cluster = configure(**{"platform": "gpu"} | config)
    entry = types.SimpleNamespace(shape=shape or ProcessShape(8, 2, 4))
    options = sbatch._sbatch_options(types.SimpleNamespace(name="scaling-x"), entry, cluster, machine, None)
    return options | options.pop("additional_parameters")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (4, "4G"),
        ("4", "4G"),
        ("4GB", "4G"),
        ("4G", "4G"),
        (0.5, "512M"),
        ("4000MB", "4000M"),
        ("4096MiB", "4G"),
        ("1.5TB", "1536G"),
    ],
)
def test_memory_without_a_unit_is_in_gigabytes(value, expected):
    assert request(memory=value)["mem"] == expected


@pytest.mark.parametrize(
    ("value", "minutes"),
    [(30, 30), ("30", 30), ("2h", 120), ("90min", 90), ("1d", 1440), ("30:00", 30), ("02:00:00", 120), ("1-00:00:00", 1440),
     ("1-12", 2160), ("1-12:30", 2190), ("0:30", 1), (0.2, 1)],
)  # fmt: skip
def test_a_time_limit_is_in_minutes_or_in_a_slurm_format(value, minutes):
    assert request(time=value)["time"] == minutes


@pytest.mark.parametrize(
    "value",
    [0, -1, "soon", "2 weeks", "1:2:3:4", "-1:00", True, "", pytest.param(f"1-{10**320}", id="321 digits")],
)
def test_an_invalid_time_is_rejected_with_the_valid_formats(value):
    formats = "a positive number of minutes, or a time such as 2h, 02:00:00 or .*, not "
    refuse(f"cluster.time must be {formats}", time=value)


@pytest.mark.parametrize(
    "value", [0, -4, pytest.param(10**320, id="321 digits"), "0.4MB", "4kB", "much", "4GBit", True, [4]]
)
def test_an_invalid_memory_size_is_rejected_with_the_valid_units(value):
    units = "a positive number of GB, or an amount such as 4GB or 4000MB, not "
    refuse(f"cluster.memory must be {units}", memory=value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("fill", 0, "cluster.fill must be"), ("platform", ["cpu"], "cluster.platform must be one of cpu, gpu, tpu"),
        ("attempts", 0, "cluster.attempts must be a positive integer"), ("nodes", 0, "cluster.nodes must be a positive integer"),
        ("at_once", -1, "cluster.at_once must be a positive integer"), ("srun", [1], "cluster.srun must be a list of words"),
        ("sbatch", 3, "cluster.sbatch"), ("partition", [1], "cluster.partition must be a name"),
        ("partition", "", "cluster.partition must be a name"), ("account", "a\nb", r"cluster.account must be a name, not 'a\\nb'"),
        ("exclude", ["a", "b\n"], "cluster.exclude must be a name"), ("time", float("inf"), "cluster.time must be"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_rejected_by_name(field, value, message):
    refuse(message, **{field: value})


@pytest.mark.parametrize("time", ["2:00:00", "02:00:00", "120", "2h", "120:00"])
def test_a_time_in_a_file_needs_no_quotes(time, tmp_path, call_main):
    """YAML 1.1 reads 2:00:00 as the number 7200."""
    folder = tmp_path / "my_conf" / "cluster"
    folder.mkdir(parents=True)
    (folder / "ours.yaml").write_text(f"defaults: [slurm]\nper_node: 4\ntime: {time}\n")
    arguments = "run --config-dir my_conf cluster=ours study=function workload=poisson points=16 dry_run=true"
    done = call_main(arguments.split(), env={"PATH": "/nowhere"})
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --time=120\n" in done.stdout


@pytest.mark.parametrize(
    ("option", "gres", "expected"),
    [
        ("gres", "gpu:h100", {"gres": "gpu:h100:4"}),
        ("gpus_per_node", "gpu:h100", {"gpus_per_node": "h100:4"}),
        ("gpus_per_node", "gpu", {"gpus_per_node": "4"}),
        ("gpus_per_task", "gpu", {"gpus_per_task": "2"}),
    ],
)
def test_gpus_are_requested_only_with_the_option_of_the_site(option, gres, expected):
    options = request(gpu_option=option, gres=gres)
    names = {"gres", "gpus_per_node", "gpus_per_task"}
    assert {name: options[name] for name in names & options.keys()} == expected


def test_a_step_requests_all_gpus_of_its_nodes_for_every_gpu_option():
    """Workers choose their GPUs by number."""
    for option in ("gpus_per_node", "gpus_per_task"):
        (options,) = worker_group.SrunSteps(("n1", "n2"), "gpu", "gpu:h100", gpu_option=option).commands(
            ProcessShape(8, 2, 4), ["worker"], {}
        )
        assert "--gpus-per-node=h100:4" in options
        assert not any(argument.startswith("--gres") for argument in options)


def test_a_gpu_option_without_a_gpu_resource_is_rejected():
    message = "cluster.gpu_option=gpus_per_node cannot request cluster.gres=shard"
    refuse(message, gres="shard", gpu_option="gpus_per_node")


@pytest.mark.parametrize(
    ("cores", "cpus_per_gpu", "expected"),
    [(None, 16.0, 32), (6, 16.0, 12), (None, 0.5, 1), (None, None, None)],
)
def test_a_process_gets_the_cpus_of_its_gpus_unless_cores_are_given(cores, cpus_per_gpu, expected):
    machine = Machine("gpu", None, 4, 2, remote=True, cpus_each=cpus_per_gpu)
    assert request(machine=machine, cores=cores).get("cpus_per_task") == expected


@pytest.mark.parametrize(
    ("cpus", "gpus", "cpus_per_gpu"),
    [("64(x2)", "4", 16.0), ("64(x2),32", "4", 8.0), ("2", "4", 0.5), ("64", "", None), ("", "4", None)],
)
def test_a_step_divides_the_cpus_of_its_job_evenly_among_the_gpus(monkeypatch, cpus, gpus, cpus_per_gpu):
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", cpus)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", gpus)
    assert slurm.cpus_per_gpu() == cpus_per_gpu


@pytest.mark.parametrize(
    ("cpus", "threads", "cores"), [("128(x2)", "", 64), ("64(x2)", "1", 64), ("3", "", 1), ("1", "", 1)]
)
def test_a_device_of_an_allocation_is_a_core_and_no_hardware_thread(cpus, threads, cores, monkeypatch):
    output = {"scontrol": "c1 c2"} | ({} if threads else {"sinfo": SITE})  # sinfo is asked only if it must be
    monkeypatch.setattr(slurm, "run_command", lambda *arguments: output[arguments[0]])
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c[1-2]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", cpus)
    monkeypatch.setenv("SLURM_THREADS_PER_CORE", threads)  # of --hint=nomultithread
    assert slurm.find_machine(parse_cluster_settings({"name": "allocation"}), False).per_node == cores


def test_a_wckey_is_sent_only_if_configured(tmp_path):
    def script(**config):
        cluster = configure(platform="gpu", **config)
        task = types.SimpleNamespace(shape=ProcessShape(1), scheduled_cases=[1], seconds=1.0)
        (text,) = sbatch.format_scripts(tmp_path, cluster, [task], NODES)
        return text

    assert "--wckey" not in script()
    assert "#SBATCH --wckey=study\n" in script(sbatch={"wckey": "study"})


@pytest.mark.parametrize(
    ("config", "option"), [({}, None), ({"mpi": "none"}, "--mpi=none"), ({"mpi": "pmix"}, "--mpi=pmix")]
)
def test_the_mpi_option_of_srun_is_that_of_the_site(config, option):
    steps = worker_group.SrunSteps(("n1",), "cpu", mpi=configure(**config).mpi)
    (options,) = steps.commands(ProcessShape(1), ["worker"], {})
    assert [part for part in options if part.startswith("--mpi")] == ([option] if option else [])


def test_a_step_ends_if_it_cannot_start_and_when_its_first_worker_ends():
    (options,) = worker_group.SrunSteps(("n1", "n2"), "cpu").commands(ProcessShape(2, 2, 2), ["worker"], {})
    assert any(option.startswith("--immediate=") for option in options)
    (wait,) = [option for option in options if option.startswith("--wait=")]
    assert "--kill-on-bad-exit=1" in options and wait != "--wait=0"


# Columns: partition, node, sockets, cores, gres, partition (with a star if default), CPUs, features.
SITE = """\
cpu|c1|2|32|(null)|cpu*|128|milan
cpu|c2|2|32|(null)|cpu*|128|milan
a100|g1|2|32|gpu:a100:4(S:0-1)|a100|128|milan,a100
h100|g2|2|48|gpu:h100:8(S:0-1)|h100|192|genoa,h100
h100|g3|2|48|gpu:h100:8(S:0-1)|h100|192|genoa,h100
"""


@pytest.fixture
def site(monkeypatch):
    """Return the devices and nodes that settings select at a site whose default partition has no GPU."""

    def machine(text=SITE, **config):
        monkeypatch.setattr(slurm, "run_command", lambda *_: text)
        selected = slurm.partition_machine(configure(**{"platform": "gpu"} | config))
        return selected.per_node, selected.nodes, selected.cpus_each

    return machine


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"partition": "a100"}, (4, 1, 32.0)),
        ({"constraint": "h100"}, (8, 2, 24.0)),
        ({"constraint": "a100&milan"}, (4, 1, 32.0)),
        ({"constraint": "milan"}, (4, 1, 32.0)),
        ({"qos": "gpu_regular"}, (8, 2, 24.0)),
        ({"per_node": 4}, (4, 3, 24.0)),
        ({"per_node": 4, "constraint": "h100"}, (4, 2, 24.0)),
    ],
    ids=str,
)
def test_settings_that_select_another_partition_override_a_default_without_gpus(site, config, expected):
    assert site(**config) == expected


def test_a_default_partition_without_gpus_is_rejected_with_partitions_that_have_gpus(site):
    message = "no node of partition cpu has a gpu: set cluster.partition to one that has: a100, h100"
    with pytest.raises(Refusal, match=message):
        site()


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_missing_default_partition_is_reported_with_the_partitions(platform, site):
    others = "a100, cpu, h100" if platform == "cpu" else "a100, h100"
    device = "core" if platform == "cpu" else "gpu"
    message = (
        f"no node of a default partition has a {device}: set cluster.partition to one that has: {others}"
    )
    with pytest.raises(Refusal, match=message):
        site(SITE.replace("cpu*", "cpu"), platform=platform)
    assert site(SITE.replace("cpu*", "cpu"), per_node=8) == (8, 2, 24.0)


def test_per_node_is_trusted_if_sinfo_lists_no_gpu(site):
    """Some sites do not list their GPUs as generic resources."""
    hidden = SITE.replace("gpu:a100:4(S:0-1)", "(null)").replace("gpu:h100:8(S:0-1)", "(null)")
    with pytest.raises(Refusal, match=r"or cluster.per_node to the number per node"):
        site(hidden)
    assert site(hidden, per_node=4, partition="h100") == (4, 2, None)
    assert site(hidden, per_node=4, constraint="a100") == (4, 1, None)


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        (["export A=1", "false", "echo later"], 1, "setup line failed with exit status 1: false"),
        (["exit 3"], 3, "setup line failed with exit status 3: exit 3"),
        (["no_such_command 'with quotes'"], 127, "exit status 127: no_such_command 'with quotes'"),
        (["f() { false; true; }", "f", "set -e"], 0, ""),
        (["false || true", "export A='a b'"], 0, ""),
        (["set -e", "false"], 1, "setup line failed with exit status 1: false"),
    ],
    ids=str,
)
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_failing_setup_line_ends_the_job_with_its_exit_status_and_text(lines, status, message, shell):
    script = "\n".join([*sbatch.checked_setup(lines), 'echo "ran $A"'])
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == status and ("ran" in done.stdout) == (status == 0)
    assert "later" not in done.stdout
    assert (message in done.stderr) if message else not done.stderr


@pytest.mark.parametrize("key", ["partition", "exclude"])
def test_partitions_and_excluded_nodes_are_a_list_or_a_comma_separated_text(key):
    for value in (["a", "b"], "a,b"):
        assert getattr(configure(**{key: value}), key) == "a,b"
    refuse(rf"{key} must be a name, or a list of names such as \[a, b\], not \[1\]", **{key: [1]})


def test_setup_is_a_list_of_shell_lines():
    assert configure(setup=["module load a", "export B=1"]).setup == ("module load a", "export B=1")
    for value in (3, "module load a\nexport B=1\n"):
        refuse(r"setup must be a list of shell lines, such as \[module load cuda\], not ", setup=value)


def test_an_unknown_key_is_rejected_with_the_keys_of_that_kind_of_cluster(call_main, tmp_path):
    (tmp_path / "my" / "cluster").mkdir(parents=True)
    (tmp_path / "my" / "cluster" / "ours.yaml").write_text("defaults: [slurm]\nqueue: gpu\n")
    for options in (["cluster=slurm", "cluster.queue=gpu"], ["--config-dir", "my", "cluster=ours"]):
        done = call_main(["run", *options, "dry_run=true"])
        assert done.returncode == 2 and "choose from name, partition, account, qos, " in done.stderr
        assert "hosts" not in done.stderr and "shell" not in done.stderr
