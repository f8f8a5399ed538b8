"""The driver: LLVM IR that is linked into every module and runs a model's steps.

    run(steps, count, bases, scratch):  for step in steps:  for chunk in range(step.chunks * step.rounds):
                                            step.kernel(bases, step.args, chunk, scratch)

Memory of the caller (`runtime.js` lays it out). A step's record has four fields of 8 bytes, as the plan's table
has them (`runtime.program.table_offsets`): the kernel's number in the table of functions; the address of its arguments;
the chunks of a round; rounds. A jump has rounds of -1 and goes on at step `chunks` if the byte at its argument
is 0, or of -2, always. `bases` is an array of addresses, of 4 bytes each.
"""

DRIVER = """
define void @run(ptr %steps, i32 %count, ptr %bases, ptr %scratch) nounwind {
entry:
  br label %step
step:
  %i = phi i32 [ 0, %entry ], [ %next, %done ], [ %target, %jump ], [ %to, %test ], [ %next, %ready ]
  %over = icmp uge i32 %i, %count
  br i1 %over, label %return, label %fetch
fetch:
  %next = add i32 %i, 1
  %here = shl i32 %i, 5
  %at = getelementptr i8, ptr %steps, i32 %here
  %args.at = getelementptr i8, ptr %at, i32 8
  %args = load ptr, ptr %args.at, align 8
  %chunks.at = getelementptr i8, ptr %at, i32 16
  %chunks = load i64, ptr %chunks.at, align 8
  %rounds.at = getelementptr i8, ptr %at, i32 24
  %rounds = load i64, ptr %rounds.at, align 8
  %is.jump = icmp slt i64 %rounds, 0
  br i1 %is.jump, label %jump, label %ready
jump:
  %target = trunc i64 %chunks to i32
  %always = icmp eq i64 %rounds, -2
  br i1 %always, label %step, label %test
test:
  %which = load i32, ptr %args, align 8
  %offset.at = getelementptr i8, ptr %args, i32 8
  %offset = load i32, ptr %offset.at, align 8
  %base.at = getelementptr ptr, ptr %bases, i32 %which
  %base = load ptr, ptr %base.at, align 4
  %flag.at = getelementptr i8, ptr %base, i32 %offset
  %flag = load i8, ptr %flag.at
  %set = icmp ne i8 %flag, 0
  %to = select i1 %set, i32 %next, i32 %target
  br label %step
ready:
  %kernel = load ptr, ptr %at, align 8
  %all = mul i64 %chunks, %rounds
  %none = icmp slt i64 %all, 1
  br i1 %none, label %step, label %chunk
chunk:
  %c = phi i64 [ 0, %ready ], [ %c.next, %chunk ]
  call void %kernel(ptr %bases, ptr %args, i64 %c, ptr %scratch)
  %c.next = add i64 %c, 1
  %more = icmp slt i64 %c.next, %all
  br i1 %more, label %chunk, label %done
done:
  br label %step
return:
  ret void
}
"""
