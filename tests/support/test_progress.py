from ingot.support.progress import listening, report


def test_reports_reach_the_innermost_listener_only_while_it_listens():
    heard: list[tuple[str, str, int, int]] = []
    report("nobody hears")
    with listening(lambda *told: heard.append(("outer", *told))):
        report("fuse")
        with listening(lambda *told: heard.append(("inner", *told))):
            report("kernels", 2, 7)
        report("link")
    report("nobody hears")
    assert heard == [("outer", "fuse", 0, 0), ("inner", "kernels", 2, 7), ("outer", "link", 0, 0)]
