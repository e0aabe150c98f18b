import asyncio

import pytest
from batching import Recorder, ask, held, run


async def settle() -> None:
    """Let the batcher begin what it will."""
    for _ in range(20):
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("beside", "runs"),
    [
        pytest.param(0.0, [[1.0], [2.0]], id="any run may begin beside another"),
        pytest.param(0.02, [[1.0], [2.0]], id="the first has taken its time by then"),
        pytest.param(60.0, [[1.0]], id="both are short"),
    ],
)
def test_a_short_run_waits_for_another_short_one_and_not_for_a_long_one(beside, runs):
    model = Recorder()

    async def scenario(batcher):
        with held(model):
            first = ask(batcher, 1)
            await settle()
            second = ask(batcher, 2)
            await settle()
            assert model.runs == runs
        for job in (first, second):
            await job.future

    run(scenario, model, workers=2, beside_seconds=beside)

    assert model.runs == [[1.0], [2.0]]
