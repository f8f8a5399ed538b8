from ingot.support.progress import listening, report


def test_reports_reach_the_innermost_listener_only_while_it_listens():
    reports: list[tuple[str, str, int, int]] = []
    report("nobody hears")
    with listening(lambda *event: reports.append(("outer", *event))):
        report("fuse")
        with listening(lambda *event: reports.append(("inner", *event))):
            report("kernels", 2, 7)
        report("link")
    report("nobody hears")
    assert reports == [("outer", "fuse", 0, 0), ("inner", "kernels", 2, 7), ("outer", "link", 0, 0)]
