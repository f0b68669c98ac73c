"""Rewards that talk to the world: a judge behind HTTP, and a classifier, each in an actor of its own."""

import asyncio
import threading

import pyarrow.parquet as pq
import pytest
import transformers

from algorithms.train.main import main
from examples.http_judge import HttpJudge, Judge, JudgeServer


@pytest.fixture
def judged_run(small_run, tmp_path, ray_session):
    """Trains two steps with a judge derived from an example's; returns its rewards, and the rows of the rollouts."""

    def run(module, judge, setting, *overrides):
        (tmp_path / "judges.py").write_text(f"from {module} import {judge}\nclass Mine({judge}):\n    {setting}\n")
        task = ["environment.id=r3env/Function-v0", "environment.data=embedded:train", "evaluation.data=null"]
        options = [f"environment.options.reward={tmp_path}/judges.py:Mine", "env_runners.reward_actor.replicas=1"]
        assert main("grpo", [*small_run, *task, *options, "env_runners.reward_actor.num_cpus=0.5", *overrides]) == 0
        return pq.read_table(tmp_path / "run" / "rollouts").to_pylist()

    return run


@pytest.fixture
def judge_server():
    """The port of the example's judge, which refuses every third request, and what it counts."""

    class Unreliable(Judge):
        def do_POST(self):
            with lock:
                counts["asked"] += 1
                refused = counts["asked"] % 3 == 0
            if refused:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                super().do_POST()

    class Counting(JudgeServer):
        def process_request(self, *arguments):
            counts["connections"] += 1
            super().process_request(*arguments)

    counts, lock = {"asked": 0, "connections": 0}, threading.Lock()
    server = Counting(("127.0.0.1", 0), Unreliable)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], counts
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_judge_behind_http_is_asked_again_when_it_refuses(judged_run, judge_server, metrics):
    port, counts = judge_server
    rows = judged_run("examples.http_judge", "HttpJudge", f'url = "http://127.0.0.1:{port}"')
    assert len(rows) == 12 and {round(row["outcome_reward"], 6) for row in rows} <= {0.0, 0.1, 1.0}
    assert counts["asked"] > 12 and counts["connections"] < counts["asked"], "connections stay open"
    assert all(step["grading/errors"] == 0 and "reward/function/Mine" in step for step in metrics())


def test_the_client_waits_for_a_slow_judge_as_long_as_the_run_does():
    async def limits():
        async with HttpJudge().connect() as session:
            return session.timeout.total, session.timeout.sock_connect, session.connector.limit

    assert asyncio.run(limits()) == (None, None, 0)


def test_a_classifier_pays_its_probability(judged_run, tmp_path):
    folder = tmp_path / "classifier"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789+-*=abcdefghijklmnopqrstuvwxyz{}"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    rows = judged_run(
        "examples.classifier_judge", "Classifier", f'model = "{folder}"', "environment.options.correct_at=0"
    )
    paid = [row["outcome_reward"] for row in rows if not row["truncated"]]
    assert len(rows) == 12 and all(0.2 < reward < 0.8 for reward in paid)
