from ingot.support.errors import IngotError, UnsupportedOp, UnsupportedOpError, message


def test_message_has_the_parts_in_order():
    text = message("concat: axis 1", expected=4, got=8, where="model.py:31", fix="only axis 0 may differ")
    assert text == "concat: axis 1: expected 4, got 8 at model.py:31; only axis 0 may differ"
    assert message("plain") == "plain"
    assert message("x", got=0) == "x: got 0"


def test_unsupported_ops_are_listed_together_and_counted():
    ops = [UnsupportedOp("Foo", "node a"), UnsupportedOp("Foo", "node b"), "Bar", UnsupportedOp("Foo", "c", "opset 3")]
    error = UnsupportedOpError(ops, model="m.onnx")
    assert isinstance(error, IngotError)
    assert str(error).splitlines()[:4] == [
        "3 ops are not supported in m.onnx:",
        "  Foo at node a and 1 more",
        "  Bar",
        "  Foo at c (opset 3)",
    ]
    assert len(error.ops) == 4
