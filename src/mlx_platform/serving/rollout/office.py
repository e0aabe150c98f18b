"""What one server does about a rollout in the registry: it says what it counted, and leads if nobody does.

Every server can lead; the rollout's state names the one that does. It renews a lease, looks when a look is
due, and writes what follows. Whoever finds the lease ended takes over by an event of its own. Two that lead
at the same time do no harm: each transition is a compare-and-set on the journal, and only one of them counts.

All of this waits for the registry, so it happens on a thread. What is to be routed where is not decided here.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import ConflictError, IntegrityError, MlxError
from mlx_platform.registry.sight import Sight
from mlx_platform.serving.rollout.aftermath import Aftermath, Failed
from mlx_platform.serving.rollout.alarm import Alarm
from mlx_platform.serving.rollout.carrying import advanced, carry_out, production_in, promote, rollout_in
from mlx_platform.serving.rollout.counts import ArmCounts, Window
from mlx_platform.serving.rollout.deaths import Marks
from mlx_platform.serving.rollout.judge import in_shadow, judge
from mlx_platform.serving.rollout.lease import LEASE, Lease, LeaseWatch, patience
from mlx_platform.serving.rollout.lookbook import Lookbook
from mlx_platform.serving.rollout.looks import Look, schedule_of
from mlx_platform.serving.rollout.machine import Transition, next_state
from mlx_platform.serving.rollout.publication import (
    LOOK,
    Published,
    added_up,
    last_look,
    leftovers,
    look_tag,
    published,
)
from mlx_platform.serving.rollout.quarantine import QuarantineWatch, quarantined
from mlx_platform.serving.rollout.readings import Readings
from mlx_platform.serving.rollout.standing import DEADLY, Own, Standing
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.steady import RolloutClock, uptime
from mlx_platform.serving.rollout.testimony import testimony_of
from mlx_platform.serving.rollout.verdict import Outcome, StepVerdict, failure

if TYPE_CHECKING:
    from mlx_platform.core.evidence import Evidence
    from mlx_platform.registry.catalog import Catalog

_AT_ONCE = 4  # transitions that may follow each other without a pause
_LEAST_SECONDS = 0.5  # between two times that a process says what it counted
_logger = logging.getLogger(__name__)


class Office:
    """One process's part in the rollouts of one alias. `turn` is called by one thread at a time.

    Args:
        catalog: the registry.
        name: the model.
        channel: the alias that is followed; rollouts that are meant for another one are none of ours.
        me: names this process.
        marks: by which processes that died are found.
        book: where looks are kept.
        witness: keeps all of a piece of evidence about a version; returns at once.
        tell: called when the journal has grown by what this process did; returns at once.
        monotonic: a clock that never jumps.
    """

    def __init__(
        self,
        catalog: "Catalog",
        name: str,
        channel: str,
        *,
        me: str,
        marks: Marks,
        book: Lookbook,
        witness: "Callable[[str, Evidence], None]",
        tell: Callable[[], None],
        monotonic: Callable[[], float] = uptime,
    ) -> None:
        self.me = me
        self.looks = 0
        self.transitions = 0
        self.conflicts = 0
        self._catalog = catalog
        self._name = name
        self._channel = channel
        self._marks = marks
        self._book = book
        self._tell = tell
        self._monotonic = monotonic
        self._now = RolloutClock(monotonic=monotonic)
        self._watch = LeaseWatch()
        self._readings = Readings()
        self._alarm = Alarm()
        self._aftermath = Aftermath(catalog, channel, witness, monotonic)
        self._quarantines = QuarantineWatch(catalog, monotonic)
        self._pending = False  # a look that is due waits for readings
        self._end = 0
        self._seen: tuple[int, Rollout | None] = (-1, None)
        self._said: tuple[Own, int] | None = None
        self._said_at = 0.0
        self._renewed_at = 0.0
        self._latest: StepVerdict | None = None
        self._led = ""
        self._littered = False
        self._differences: tuple[Mapping[str, Any], ...] = ()
        self._kept_differences: tuple[Mapping[str, Any], ...] = ()

    def fresh(self, rollout: Rollout) -> bool:
        """Whether somebody leads: without that nothing is routed to the candidate. For any thread."""
        seconds = patience(rollout.plan.look_every_s)
        return self._watch.fresh(rollout.id, rollout.controller, self._monotonic(), seconds)

    def read(self, sight: Sight) -> Standing:
        """How things stand by what the registry looked like, which nothing is asked for; for any thread."""
        rollout = self._read(sight)
        holder = sight.holders.get(self._channel)
        leads = rollout is not None and rollout.controller == self.me
        return Standing(rollout, holder, None, leads, sight.journal_end)

    def turn(self, sight: Sight, own: Own | None) -> Standing:
        """Say what was counted, and do what there is to do.

        Args:
            sight: what the registry looked like a moment ago.
            own: what this process has counted since.

        Raises:
            UnavailableError: the registry is busy or cannot be reached.
            IntegrityError: its journal is broken.
        """
        self._differences = own.differences if own is not None else ()
        if sight.journal_end < self._end:
            sight = self._catalog.sight(self._name)  # that was before the last transition of our own
        standing = Standing()
        for _ in range(_AT_ONCE):
            self._end = sight.journal_end
            self._watch.see(Lease.decode(sight.tags.get(LEASE, "")), self._monotonic())
            standing = self.read(sight)
            rollout = standing.rollout
            self._now.see(rollout)
            if rollout is None:
                self._leave(sight)
                self._aftermath.see(sight)
                return standing
            deaths = self._marks.deaths(rollout.id, rollout.window)
            standing = replace(standing, deaths=deaths)
            self._say(rollout, own, deaths)
            try:
                if not self._act(sight, rollout, own, deaths):
                    break
            except ConflictError as error:
                self.conflicts += 1
                _logger.info("%s", error.message)
                break
            sight = self._catalog.sight(self._name)
        return standing

    def goodbye(self, own: Own | None) -> None:
        """Say the last word of this process: what it counted, and that somebody else must lead.

        Raises:
            UnavailableError: the registry is busy or cannot be reached.
        """
        rollout = self._seen[1]
        if rollout is None or own is None or own.rollout != rollout.id:
            return
        said = Published(self.me, own.rollout, own.counted, rfc3339(self._now()), clean=True)
        tags = {said.tag: said.encode()}
        if rollout.controller == self.me:
            tags[LEASE] = Lease(rollout.id, "").encode()
        self._catalog.set_model_tags(self._name, tags)

    # Within

    def _read(self, sight: Sight) -> Rollout | None:
        """The rollout that goes on; one that cannot be understood gets no traffic, and is said once."""
        head, found = self._seen
        if head != sight.head:
            try:
                found = rollout_in(sight)
            except IntegrityError as error:
                _logger.error("The rollout of %s gets no traffic here: %s", self._name, error.message)  # noqa: TRY400
                found = None
            if found is not None and found.channel != self._channel:
                found = None
            self._seen = (sight.head, found)
        return found

    def _leave(self, sight: Sight) -> None:
        """Take away what nobody needs any more after a rollout."""
        if self._said is None and not self._led:
            return
        self._latest = None
        mine = [tag for tag in leftovers(sight.tags, None) if self._led or tag.endswith(f".{self.me}")]
        if self._clean(mine):
            self._said, self._led = None, ""

    def _clean(self, tags: Collection[str]) -> bool:
        """Take tags away that say nothing to anybody any more; whether that was possible."""
        try:
            if tags:
                self._catalog.delete_model_tags(self._name, tags)
        except MlxError as error:  # what they were needed for is done
            _logger.log(
                logging.DEBUG if self._littered else logging.WARNING,
                "Tags of rollouts that are over stay at %s: %s",
                self._name,
                error.message,
            )
            self._littered = True
            return False
        self._littered = False
        return True

    def _say(self, rollout: Rollout, own: Own | None, deaths: int) -> None:
        if own is None or (own.rollout, own.counted.number) != (rollout.id, rollout.window):
            return
        before, moment = self._said, self._monotonic()
        told = before is not None and (before[0].counted.number, before[0].loaded, before[0].problem) == (
            *(own.counted.number, own.loaded),
            own.problem,
        )
        pause = max(rollout.plan.look_every_s, _LEAST_SECONDS)
        if before and told and before[1] == deaths and moment - self._said_at < pause:
            return
        said = Published(
            self.me, own.rollout, own.counted, rfc3339(self._now()), deaths, own.loaded, own.problem
        )
        self._catalog.set_model_tags(self._name, {said.tag: said.encode()})
        self._said, self._said_at = (own, deaths), moment

    def _act(self, sight: Sight, rollout: Rollout, own: Own | None, deaths: int) -> bool:
        """Do what there is to do; whether the journal has grown by it."""
        if rollout.controller != self.me:
            # One that was paused because it failed has been told of deaths: nobody needs to lead for that.
            deadly = deaths >= DEADLY and (rollout.state, rollout.cause) != ("PAUSED", "fail")
            if rollout.controller and self._lives(rollout) and not deadly:
                return False
            self._take_over(sight, rollout)
            return True
        self._renew(sight, rollout)
        production = production_in(sight, rollout.channel)
        if sentence := self._quarantines.sentence(rollout):
            ended = quarantined(rollout, sentence, now=self._now(), production=production)
            if ended is not None:
                self._go(sight, rollout, ended, None)
            return ended is not None
        every = self._every(sight, rollout, own)
        if rollout.state == "PROMOTING" and production.holder == rollout.stable:
            promote(self._catalog, rollout, after=rollout.event)
            return True
        self._pending = False
        total = added_up(every, rollout.window)
        verdict = self._deadly(rollout, every, deaths) or self._look(rollout, total)
        baseline = total.arm("stable").document()
        decided = next_state(
            rollout, now=self._now(), production=production, verdict=verdict, baseline=baseline
        )
        if decided is None or (self._pending and not _cannot_wait(decided, verdict)):
            return False
        self._go(sight, rollout, decided, verdict)
        return True

    def _lives(self, rollout: Rollout) -> bool:
        """Whether somebody leads, or has only just begun to, and did not die on this machine."""
        if self._marks.died(rollout.id, rollout.window, rollout.controller):
            return False
        seconds = patience(rollout.plan.look_every_s)
        awaited = self._watch.is_awaited(rollout.id, rollout.controller, self._monotonic(), seconds)
        return self.fresh(rollout) or awaited

    def _go(self, sight: Sight, before: Rollout, decided: Transition, verdict: StepVerdict | None) -> None:
        after = decided.rollout
        carry_out(self._catalog, decided, after=sight.head)
        self.transitions += 1
        _logger.warning("%s: %s. %s", after.ref, after.state, after.reason)
        self._tell()
        if "quarantine" in decided.effects:
            self._aftermath.settle(Failed(before, after))
        else:
            by_hand = advanced(sight, before)
            for evidence in testimony_of(before, decided, verdict, self._now(), by_hand=by_hand):
                self._aftermath.keep(after.ref, evidence)
        stale = [said.tag for said in published(sight.tags, before.id) if said.counted.number < after.window]
        if after.active:
            self._clean(stale)

    def _take_over(self, sight: Sight, rollout: Rollout) -> None:
        leading = replace(rollout, controller=self.me)
        self._catalog.transition(
            self._name,
            leading.document(),
            candidate=self._catalog.resolve(rollout.ref),
            after=sight.head,
            actor=self.me,
            reason=f"{self.me} leads now.",
        )
        self.transitions += 1
        self._latest, self._alarm = last_look(sight.tags, rollout.id), Alarm()
        self._renew(sight, leading, force=True)
        self._clean(leftovers(sight.tags, rollout.id))

    def _renew(self, sight: Sight, rollout: Rollout, *, force: bool = False) -> None:
        """Say that somebody leads, a few times in each span after which others would not believe it."""
        moment = self._monotonic()
        self._led = rollout.id
        if not force and moment - self._renewed_at < patience(rollout.plan.look_every_s) / 4:
            return
        known = Lease.decode(sight.tags.get(LEASE, ""))
        renewals = known.renewals if known and known.rollout == rollout.id else 0
        lease = Lease(rollout.id, self.me, renewals + 1)
        self._catalog.set_model_tags(self._name, {LEASE: lease.encode()})
        self._watch.see(lease, moment)
        self._renewed_at = moment

    def _every(self, sight: Sight, rollout: Rollout, own: Own | None) -> tuple[Published, ...]:
        """What all processes say; of this one, what it has just counted."""
        others = [said for said in published(sight.tags, rollout.id) if said.server != self.me]
        if own is None or own.rollout != rollout.id:
            return tuple(others)
        return (*others, Published(self.me, own.rollout, own.counted, "", loaded=own.loaded))

    def _deadly(self, rollout: Rollout, every: tuple[Published, ...], deaths: int) -> StepVerdict | None:
        told = [said.deaths for said in every if said.counted.number == rollout.window]
        worst = max([deaths, *told])
        if worst < DEADLY:
            return None
        message = f"{worst} processes of a server died one after the other with {rollout.ref} loaded."
        return failure("server_died", message, window=rollout.window)

    def _look(self, rollout: Rollout, total: Window) -> StepVerdict | None:
        """The verdict of the look that is due, or of the one before."""
        latest = self._latest if self._latest and self._latest.window == rollout.window else None
        baking = rollout.state == "BAKING"
        if rollout.state == "PROMOTING":
            return latest
        schedule = schedule_of(rollout.plan, rollout.step, baking=baking)
        now = self._now()
        elapsed = rollout.elapsed_s(now)
        taken = latest.look if latest else 0
        number = schedule.due(elapsed, taken)
        if number is None:
            return self._listen(rollout, total, schedule.look(taken + 1, elapsed), latest, rfc3339(now))
        shadow = in_shadow(rollout.plan, rollout.step) and not baking
        rules = [rule for rule in rollout.plan.metrics if rule.applies(shadow=shadow)]
        readings = self._readings.collect((rollout.id, rollout.window, number), rules, rollout)
        if readings is None:
            self._pending = True
            return latest
        if baking:
            total.arms["stable"] = ArmCounts.from_document(rollout.baseline or {})
        look = schedule.look(number, elapsed, readings)
        verdict = judge(rollout.plan, rollout.step, total, look, latest, baking=baking)
        self._keep(rollout, total, verdict, rfc3339(now))
        return verdict

    def _listen(
        self, rollout: Rollout, total: Window, coming: Look, latest: StepVerdict | None, at: str
    ) -> StepVerdict | None:
        """What cannot wait for the look that comes; else the verdict of the one before."""
        baking = rollout.state == "BAKING"
        heard = self._alarm.hear(rollout.plan, rollout.step, total, coming, baking=baking)
        if heard is None or (latest and latest.outcome is Outcome.FAIL):
            return latest
        if heard.outcome is Outcome.FAIL:
            self._keep(rollout, total, heard, at)
        return heard

    def _keep(self, rollout: Rollout, total: Window, verdict: StepVerdict, at: str) -> None:
        self._latest = verdict
        self.looks += 1
        self._book.add(
            rollout.id,
            {
                "at": at,
                "state": rollout.state,
                "step": rollout.step,
                "weight": rollout.weight,
                "shadow": rollout.shadow,
                "arms": total.document(),
                **verdict.document(),
                **self._new_differences(),
            },
        )
        self._catalog.set_model_tags(self._name, {LOOK: look_tag(rollout, verdict, at)})

    def _new_differences(self) -> dict[str, Any]:
        """The worst differences that this process has seen, where others were kept last."""
        if self._differences == self._kept_differences:
            return {}
        self._kept_differences = self._differences
        return {"differences": list(self._differences)}


def _cannot_wait(decided: Transition, verdict: StepVerdict | None) -> bool:
    """Whether that follows whatever the look will say which is due."""
    failed = verdict is not None and verdict.outcome is Outcome.FAIL
    return failed or decided.rollout.state == "SUPERSEDED"
