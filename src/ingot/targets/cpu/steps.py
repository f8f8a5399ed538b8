"""The execution of a step by a thread, in LLVM IR: kernel, clock and jump; and a run of all steps without workers.

The fields of step and context are described in `targets/cpu/driver.py`.
"""

from __future__ import annotations

# Load a step's chunks and rounds; a jump branches back to %step.
STEP_FIELDS = """\
  %here = mul i64 %i, 32
  %at = getelementptr i8, ptr %steps, i64 %here
  %chunks.at = getelementptr i8, ptr %at, i64 16
  %chunks = load i64, ptr %chunks.at
  %rounds.at = getelementptr i8, ptr %at, i64 24
  %rounds = load i64, ptr %rounds.at
  %is.jump = icmp slt i64 %rounds, 0
  br i1 %is.jump, label %jump, label %ready
jump:
  %to = call i64 @jump(ptr %ctx, ptr %at, i64 %i.next)
  br label %step
ready:"""

STEPS = (
    """
define internal void @kernel(ptr %ctx, ptr %step, i64 %chunk, i64 %thread) nounwind alwaysinline {
  %code = load ptr, ptr %step
  %args.at = getelementptr i8, ptr %step, i64 8
  %args = load ptr, ptr %args.at
  %bases.at = getelementptr i8, ptr %ctx, i64 8
  %bases = load ptr, ptr %bases.at
  %scratch.at = getelementptr i8, ptr %ctx, i64 32
  %scratch.all = load ptr, ptr %scratch.at
  %stride.at = getelementptr i8, ptr %ctx, i64 40
  %stride = load i64, ptr %stride.at
  %mine = mul i64 %stride, %thread
  %scratch = getelementptr i8, ptr %scratch.all, i64 %mine
  call void %code(ptr %bases, ptr %args, i64 %chunk, ptr %scratch)
  ret void
}

define internal void @record(ptr %ctx, i64 %step) nounwind alwaysinline {
  %profile.at = getelementptr i8, ptr %ctx, i64 48
  %profile = load ptr, ptr %profile.at
  %off = icmp eq ptr %profile, null
  br i1 %off, label %done, label %write
write:
  %now = call i64 @ingot_clock()
  %cell = getelementptr i64, ptr %profile, i64 %step
  store i64 %now, ptr %cell
  br label %done
done:
  ret void
}

; Where to go on after the jump at `step`, which `next` follows.
define internal i64 @jump(ptr %ctx, ptr %step, i64 %next) nounwind alwaysinline {
  %target.at = getelementptr i8, ptr %step, i64 16
  %target = load i64, ptr %target.at
  %kind.at = getelementptr i8, ptr %step, i64 24
  %kind = load i64, ptr %kind.at
  %always = icmp eq i64 %kind, -2
  br i1 %always, label %go, label %test
go:
  ret i64 %target
test:
  %args.at = getelementptr i8, ptr %step, i64 8
  %args = load ptr, ptr %args.at
  %which = load i64, ptr %args
  %offset.at = getelementptr i8, ptr %args, i64 8
  %offset = load i64, ptr %offset.at
  %bases.at = getelementptr i8, ptr %ctx, i64 8
  %bases = load ptr, ptr %bases.at
  %base.at = getelementptr ptr, ptr %bases, i64 %which
  %base = load ptr, ptr %base.at
  %flag.at = getelementptr i8, ptr %base, i64 %offset
  %flag = load i8, ptr %flag.at
  %set = icmp ne i8 %flag, 0
  %to = select i1 %set, i64 %next, i64 %target
  ret i64 %to
}

; Whether the caller of the run wants its end.
define internal i1 @stopped(ptr %ctx) nounwind alwaysinline {
  %stop.at = getelementptr i8, ptr %ctx, i64 104
  %stop = load atomic i64, ptr %stop.at monotonic, align 8
  %set = icmp ne i64 %stop, 0
  ret i1 %set
}

; Whether the caller's slice is over. The clock is read at every border of chunks, or every 16th where these take less
; than 1/4096 of a slice.
define internal i1 @late(ptr %ctx) nounwind alwaysinline {
  %left.at = getelementptr i8, ptr %ctx, i64 112
  %left = load i64, ptr %left.at
  %fewer = sub i64 %left, 1
  store i64 %fewer, ptr %left.at
  %due = icmp slt i64 %left, 1
  br i1 %due, label %read, label %early
read:
  %entered.at = getelementptr i8, ptr %ctx, i64 128
  %entered = load i64, ptr %entered.at
  %slice.at = getelementptr i8, ptr %ctx, i64 72
  %slice = load i64, ptr %slice.at
  %last.at = getelementptr i8, ptr %ctx, i64 120
  %last = load i64, ptr %last.at
  %now = call i64 @ingot_clock()
  store i64 %now, ptr %last.at
  %brief = lshr i64 %slice, 8
  %took = sub i64 %now, %last
  %short = icmp ult i64 %took, %brief
  %next = select i1 %short, i64 15, i64 0
  store i64 %next, ptr %left.at
  %spent = sub i64 %now, %entered
  %late = icmp ugt i64 %spent, %slice
  ret i1 %late
early:
  ret i1 0
}

; Returns 1 where the slice is over, and goes on there when called again; 0 at the end.
define internal i64 @alone(ptr %ctx) nounwind {
  %steps.at = getelementptr i8, ptr %ctx, i64 16
  %steps = load ptr, ptr %steps.at
  %count.at = getelementptr i8, ptr %ctx, i64 24
  %count = load i64, ptr %count.at
  %step.at = getelementptr i8, ptr %ctx, i64 88
  %chunk.at = getelementptr i8, ptr %ctx, i64 96
  %left.at = getelementptr i8, ptr %ctx, i64 112
  %step.first = load i64, ptr %step.at
  %chunk.first = load i64, ptr %chunk.at
  br label %step
step:
  %i = phi i64 [ %step.first, %0 ], [ %i.next, %next ], [ %to, %jump ]
  %begin = phi i64 [ %chunk.first, %0 ], [ 0, %next ], [ 0, %jump ]
  call void @record(ptr %ctx, i64 %i)
  %i.next = add i64 %i, 1
  %end = icmp eq i64 %i, %count
  br i1 %end, label %over, label %first
first:
"""
    + STEP_FIELDS
    + """
  %all.chunks = mul i64 %chunks, %rounds
  %several = icmp ugt i64 %all.chunks, 1
  br i1 %several, label %long, label %chunk
long: ; worth a reading of the clock, whatever the steps before took
  store i64 0, ptr %left.at
  br label %chunk
chunk:
  %c = phi i64 [ %begin, %ready ], [ %begin, %long ], [ %c.next, %body ]
  %all = icmp eq i64 %c, %all.chunks
  br i1 %all, label %next, label %look
look:
  %late = call i1 @late(ptr %ctx)
  br i1 %late, label %leave, label %body
body:
  call void @kernel(ptr %ctx, ptr %at, i64 %c, i64 0)
  %c.next = add i64 %c, 1
  br label %chunk
next:
  br label %step
leave:
  store i64 %i, ptr %step.at
  store i64 %c, ptr %chunk.at
  ret i64 1
over:
  store i64 0, ptr %step.at
  store i64 0, ptr %chunk.at
  ret i64 0
}
"""
)
