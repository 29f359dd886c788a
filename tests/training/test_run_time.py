from nearkin.training.run_time import RunTime


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_sittings_add_up_without_what_lies_between_them():
    clock = Clock()
    first = RunTime(clock)
    assert first.seconds == 0, "nothing counts before the beginning"
    first.begin()
    clock.now += 3
    first.begin()
    with first.on("steps"):
        clock.now += 5
    first.images_scored = 12
    saved = first.state_dict()
    clock.now += 1000
    second = RunTime(clock)
    second.load_state_dict(saved)
    second.begin()
    with second.on("evaluations"):
        clock.now += 2
    assert second.seconds == 10
    assert second.by == {"steps": 5, "evaluations": 2, "checkpoints": 0}
    assert second.images_scored == 12


def test_what_fails_has_taken_its_time_too():
    clock = Clock()
    time = RunTime(clock)
    try:
        with time.on("steps"):
            clock.now += 4
            raise ValueError
    except ValueError:
        pass
    assert time.by["steps"] == 4
