"""Runs can be stopped and gone on with: what is in the file is not done again."""

import threading
import time
from pathlib import Path

import pytest
from made_up import record

from benchmarks.paper.jobs import run, run_together, wanted
from benchmarks.paper.protocol import PROTOCOLS
from benchmarks.paper.records import Key, Records
from benchmarks.paper.systems import SYSTEMS

TOY = PROTOCOLS["toy"]


class Measured:
    """Pretends to learn; can break down at one system."""

    def __init__(self, broken=None):
        self.jobs, self.broken = [], broken

    def __call__(self, job):
        self.jobs.append(job)
        if job.system == self.broken:
            raise RuntimeError("broke down")
        return [record(job.key(output), together=job.together) for output in job.outputs]


def all_jobs(systems=tuple(SYSTEMS), outputs=None):
    return list(wanted(["mujoco1", "kuka"], systems, outputs, [0], TOY))


def test_systems_of_one_output_come_apart_and_joint_ones_together():
    jobs = all_jobs()
    assert [job.outputs for job in jobs if job.system == "svdgp"] == [(1,), (9,), (1,)]
    assert [job.outputs for job in jobs if job.system == "boosting"] == [(1, 9), (1,)]
    assert [job.data for job in all_jobs(["svi"], [8, 9])] == ["mujoco1", "mujoco1"]
    order = [(job.system, job.outputs) for job in all_jobs(["svi", "svdgp", "linear"])[:5]]
    assert order == [(s, (k,)) for k in (1, 9) for s in ("svdgp", "svi")] + [("linear", (1, 9))]


def test_a_second_run_does_nothing(tmp_path: Path):
    path, first, second = tmp_path / "out" / "records.jsonl", Measured(), Measured()
    assert run(all_jobs(), Records(path), first) == []
    assert len(first.jobs) == len(all_jobs())
    assert run(all_jobs(), Records(path), second) == []
    assert second.jobs == []
    assert len(path.read_text().splitlines()) == len(Records(path)) == 3 * len(SYSTEMS)


def test_a_run_that_broke_goes_on_where_it_was(tmp_path: Path):
    path, first, second = tmp_path / "records.jsonl", Measured("svi"), Measured()
    problems = run(all_jobs(), Records(path), first)
    assert len(problems) == 3
    assert "RuntimeError: broke down" in problems[0]
    assert run(all_jobs(), Records(path), second) == []
    assert {job.system for job in second.jobs} == {"svi"}


def test_other_seeds_sizes_and_missing_outputs_are_run(tmp_path: Path):
    records = Records(tmp_path / "records.jsonl")
    run(all_jobs(outputs=[1]), records, Measured())
    later = Measured()
    run(all_jobs(["linear"], [1, 2]), records, later)
    assert [job.outputs for job in later.jobs] == [(2,), (2,)]
    run(wanted(["kuka"], ["linear"], [1], [1], TOY), records, later)
    run(wanted(["kuka"], ["linear"], [1], [0], PROTOCOLS["quick"]), records, later)
    assert len(later.jobs) == 4


def test_timed_systems_get_the_seconds_of_svdgp_and_wait_for_it(tmp_path: Path):
    records, measured = Records(tmp_path / "records.jsonl"), Measured()
    jobs = list(wanted(["mujoco1"], ["defaults", "svgp"], [1, 9], [0], TOY))
    problems = run(jobs, records, measured)
    assert len(problems) == 4
    assert "run it first" in problems[0]
    for output in (1, 9):
        records.add(record(Key("mujoco1", output, "svdgp", 0, "toy"), seconds=10.0 + output))
    assert run(jobs, records, measured) == []
    assert [job.seconds for job in measured.jobs] == [11.0, 11.0, 19.0, 19.0]


def test_seconds_of_another_number_of_cores_are_not_given_to_timed_systems(tmp_path: Path):
    records, measured = Records(tmp_path / "records.jsonl"), Measured()
    records.add(record(Key("mujoco1", 1, "svdgp", 0, "toy")))
    records.add(record(Key("mujoco1", 9, "svdgp", 0, "toy"), together=2))
    jobs = list(wanted(["mujoco1"], ["svgp"], [1, 9], [0], TOY, together=2))
    (problem,) = run(jobs, records, measured)
    assert "use --together 1, or delete its line" in problem
    assert [job.outputs for job in measured.jobs] == [(9,)]


def test_outputs_are_learnt_at_the_same_time_each_with_its_systems_in_order(tmp_path: Path):
    both, measures = threading.Barrier(2), [Measured(), Measured()]

    def meeting(measured):
        def learn(job):
            if len(measured.jobs) == 0:
                both.wait(timeout=30)  # broken unless both have begun
            return measured(job)

        return learn

    path = tmp_path / "records.jsonl"
    systems = ("svdgp", "svi", "defaults")
    jobs = list(wanted(["mujoco1", "kuka"], systems, None, [0], TOY, together=2))
    assert run_together(jobs, Records(path), [meeting(m) for m in measures]) == []
    assert len(Records(path)) == len(jobs) == 9
    for measured in measures:
        done = [job.system for job in measured.jobs]
        assert done == list(systems) * (len(done) // 3)
    assert sorted(len(measured.jobs) for measured in measures) == [3, 6]
    broken = [Measured("svi"), Measured("svi")]
    problems = run_together(jobs, Records(tmp_path / "others.jsonl"), broken)
    assert len(problems) == 3


def test_after_ctrl_c_no_further_job_begins(tmp_path: Path):
    stopped, begun, other = threading.Event(), threading.Event(), Measured()

    def interrupted(job):
        begun.wait(timeout=30)
        stopped.set()
        raise KeyboardInterrupt

    def learn(job):
        begun.set()
        stopped.wait(timeout=30)
        time.sleep(0.2)  # until the other thread has ended
        return other(job)

    jobs = list(wanted(["mujoco1", "kuka"], ("svdgp", "svi"), None, [0], TOY, together=2))
    with pytest.raises(KeyboardInterrupt):
        run_together(jobs, Records(tmp_path / "records.jsonl"), [interrupted, learn])
    assert len(other.jobs) == 1


def test_every_protocol_names_systems_that_there_are():
    for protocol in PROTOCOLS.values():
        assert set(protocol.systems) <= set(SYSTEMS)
        assert "svdgp" in protocol.systems  # others get the time that it took


def test_half_a_line_is_run_again_and_a_wrong_one_is_named(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    Records(path).add(record(Key("kuka", 1, "svi", 0, "toy")))
    with path.open("a") as file:
        file.write('{"data": "ku')
    assert len(Records(path)) == 1
    with path.open("a") as file:
        file.write("}\n")
    with pytest.raises(ValueError, match="line 2 is no result"):
        Records(path)
