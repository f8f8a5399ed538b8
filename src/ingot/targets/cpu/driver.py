"""The driver: LLVM IR that is linked into every blob and runs a model's steps on the caller and its workers.

    run(ctx):  for step in ctx.steps:  for round in step.rounds:
                   for chunk in parallel(step.chunks):  step.kernel(bases, args, round * chunks + chunk, scratch)

Each thread gets a contiguous range of a round's chunks, so that its cache holds what it wrote in the previous step:

    range of a thread:  [ end, 32 bits | begin, 32 bits ]    next:  [ bit 63: run is over | 32 bits: tag, +1 per round ]

- **claim**: compare-and-swap the thread's own range to `begin + 1`; once it is empty, another's to `end - 1`. A swap
  that succeeds proves that the chunk is free *now*, so the age of the value does not matter. The chunk's round is read
  afterwards, while the claimed chunk keeps that round, and so its context, from ending. Before that a late thread reads
  only pool memory.
- **pay**: `done` counts down a round's chunks and its publisher. A thread sums up its finished chunks and subtracts
  them at once when its range is empty: one contended operation per round instead of one per chunk.
- **advance**: the thread that brings `done` to 0 owns the run: it publishes the next round of the step or the next
  step, and runs rounds of one chunk itself. No thread waits for one without a chunk, so a preempted or sleeping worker
  costs only its help. Without workers the caller runs everything.
- **wait**: spin for `spin` ticks, then sleep on a futex (the tag half of `next`). A sleeper announces itself before the
  kernel compares the tag, and the publisher changes the tag before it looks for sleepers, so no wake-up is lost
  (Dekker's pattern; both sides sequentially consistent).
- **make room**: a thread that has run for `turn` ticks yields its core (`sched_yield`) while it holds no chunk.
  Otherwise the operating system would preempt it in the middle of a chunk, and all others would wait for that chunk.
- **report**: a run returns to Python every `slice` ticks, between chunks and while the caller holds none, so that
  Python handles signals; workers go on meanwhile. Python calls it again until it is over, or stops it.
- **settle**: every thread records its core now and then. A worker that shares its core with another thread of the pool
  moves to a free core: two threads on one core would alternate in time slices of milliseconds.

Memory of the caller (`runtime/cpu/pool.py` and `instance.py` lay it out; all fields are 8 bytes):

    ctx:   0 pool (0: run alone)  8 bases  16 steps  24 step count  32 scratch  40 scratch bytes per thread
           48 profile: step count + 1 clock readings, or 0  56 ticks that a run alone takes  64 one that wakes workers
           72 slice ticks  80 how the run continues: 0 there is none, 1 alone, 2 by chunks, 4 by advancing
           88 step and  96 chunk at which a run alone continues  104 stop: run no more chunks
           112 chunks until the clock is read again  120 its last reading  128 the start of the slice
    step:  0 kernel  8 args  16 chunk count of a round (< 2**31)  24 rounds
           a jump:  8 the place of its flag, a byte: index into bases, byte offset  16 the step to continue with
           24 -1: jump if the flag is 0; -2: always
    pool:  0 next  8 ctx  16 step at hand  24 its record  32 its next round  40 first chunk of the published round
           48 ranges in use  128 done  256 sleeping workers  264 caller sleeps
           512 syscall  520 spin ticks  528 workers joined  536 stop  544 threads  552 turn ticks
           576 the end of the last run  584 consecutive runs that began less than `spin` after another
           640 + 128 t: of thread t  0 range  8 core + 1, or 0 if unknown  16 when it last made room
"""

from __future__ import annotations

from string import Template

from ingot.support.errors import CompileError
from ingot.targets.cpu.entry import ENTRY
from ingot.targets.cpu.steps import STEP_FIELDS, STEPS
from ingot.targets.cpu.system import CALLS, SYSTEM


def driver_ir(arch: str) -> str:
    """The driver's LLVM IR text for "x86_64", "aarch64" or "riscv64" on Linux."""
    if arch not in CALLS:
        raise CompileError("CPU driver", expected=f"one of {sorted(CALLS)}", got=arch)
    calls = CALLS[arch]
    return SYSTEM.substitute(calls) + STEPS + _DRIVER.substitute(calls, step_fields=STEP_FIELDS) + ENTRY


_DRIVER = Template("""
; Deal `chunks` out to the first threads as evenly as whole chunks allow.
define internal void @deal(ptr %pool, i64 %chunks) nounwind alwaysinline {
  %threads.at = getelementptr i8, ptr %pool, i64 544
  %threads = load i64, ptr %threads.at
  %each = udiv i64 %chunks, %threads
  %rest = urem i64 %chunks, %threads
  %few = icmp ult i64 %chunks, %threads
  %used = select i1 %few, i64 %chunks, i64 %threads
  %used.at = getelementptr i8, ptr %pool, i64 48
  store atomic i64 %used, ptr %used.at monotonic, align 8
  br label %thread
thread:
  %t = phi i64 [ 0, %0 ], [ %t.next, %thread ]
  %begin = phi i64 [ 0, %0 ], [ %end, %thread ]
  %longer = icmp ult i64 %t, %rest
  %extra = zext i1 %longer to i64
  %length = add i64 %each, %extra
  %end = add i64 %begin, %length
  %high = shl i64 %end, 32
  %range = or i64 %high, %begin
  %line = mul i64 %t, 128
  %offset = add i64 %line, 640
  %range.at = getelementptr i8, ptr %pool, i64 %offset
  store atomic i64 %range, ptr %range.at release, align 8
  %t.next = add i64 %t, 1
  %all = icmp eq i64 %t.next, %used
  br i1 %all, label %dealt, label %thread
dealt:
  ret void
}

; Called by the only thread in the run that holds work: publish the next round of several chunks, or end the run.
; Returns what the thread then has to pay: 1 as the publisher, 0 if that is paid; -1 where the caller's slice is over
; and it has to advance further.
define internal i64 @advance(ptr %pool, i64 %thread) nounwind {
  %ctx.at = getelementptr i8, ptr %pool, i64 8
  %ctx = load ptr, ptr %ctx.at
  %index.at = getelementptr i8, ptr %pool, i64 16
  %round.at = getelementptr i8, ptr %pool, i64 32
  %done.at = getelementptr i8, ptr %pool, i64 128
  %steps.at = getelementptr i8, ptr %ctx, i64 16
  %steps = load ptr, ptr %steps.at
  %count.at = getelementptr i8, ptr %ctx, i64 24
  %count = load i64, ptr %count.at
  %own = icmp eq i64 %thread, 0
  br label %resume
resume:
  %index = load i64, ptr %index.at
  %again = load i64, ptr %round.at
  br label %step
step:
  %i = phi i64 [ %index, %resume ], [ %i.next, %next ], [ %i, %body ], [ %i, %check ],
                [ %to, %jump ]
  %round = phi i64 [ %again, %resume ], [ 0, %next ], [ %round.next, %body ], [ %round.next, %check ],
                    [ 0, %jump ]
  %stopped = call i1 @stopped(ptr %ctx)
  br i1 %stopped, label %over, label %begin
begin:
  %fresh = icmp eq i64 %round, 0
  br i1 %fresh, label %enter, label %look
enter:
  call void @record(ptr %ctx, i64 %i)
  %end = icmp eq i64 %i, %count
  br i1 %end, label %over, label %look
look:
  %i.next = add i64 %i, 1
  %round.next = add i64 %round, 1
$step_fields
  %more = icmp slt i64 %round, %rounds
  br i1 %more, label %some, label %next
some:
  %several = icmp ugt i64 %chunks, 1
  br i1 %several, label %publish, label %few
few:
  %one = icmp eq i64 %chunks, 1
  br i1 %one, label %body, label %next
body:
  call void @kernel(ptr %ctx, ptr %at, i64 %round, i64 %thread)
  br i1 %own, label %check, label %step
check:
  %late = call i1 @late(ptr %ctx)
  br i1 %late, label %leave, label %step
leave:
  store i64 %i, ptr %index.at
  store i64 %round.next, ptr %round.at
  ret i64 -1
next:
  br label %step
publish: ; `done` counts this thread too, so that the round cannot end before all of it is published
  store i64 %i, ptr %index.at
  store i64 %round.next, ptr %round.at
  %first = mul i64 %round, %chunks
  %first.at = getelementptr i8, ptr %pool, i64 40
  store i64 %first, ptr %first.at
  %current.at = getelementptr i8, ptr %pool, i64 24
  store ptr %at, ptr %current.at
  %parts = add i64 %chunks, 1
  store atomic i64 %parts, ptr %done.at monotonic, align 8
  call void @deal(ptr %pool, i64 %chunks)
  %old = load atomic i64, ptr %pool monotonic, align 8
  %old.next = add i64 %old, 1
  %tag = and i64 %old.next, 4294967295
  store atomic i64 %tag, ptr %pool seq_cst, align 8
  %workers.at = getelementptr i8, ptr %pool, i64 256
  %workers = load atomic i64, ptr %workers.at seq_cst, align 8
  %caller.at = getelementptr i8, ptr %pool, i64 264
  %caller = load atomic i64, ptr %caller.at seq_cst, align 8
  %sleepers = or i64 %workers, %caller
  %awake = icmp eq i64 %sleepers, 0
  br i1 %awake, label %owing, label %wake
owing:
  ret i64 1
wake: ; pay first: the kernel may put a woken thread in this one's place
  %before = atomicrmw sub ptr %done.at, i64 1 acq_rel, align 8
  %others = sub i64 %chunks, 1
  call void @wake.workers(ptr %pool, i64 %others)
  call void @wake.caller(ptr %pool)
  %finished = icmp eq i64 %before, 1
  br i1 %finished, label %resume, label %paid
over:
  %last = load atomic i64, ptr %pool monotonic, align 8
  %unpublished = icmp slt i64 %last, 0
  br i1 %unpublished, label %paid, label %finish
finish: ; from this store on the caller may return and start another run: touch only the pool's sleepers
  %last.next = add i64 %last, 1
  %last.tag = and i64 %last.next, 4294967295
  %final = or i64 %last.tag, -9223372036854775808
  store atomic i64 %final, ptr %pool seq_cst, align 8
  call void @wake.caller(ptr %pool)
  br label %paid
paid:
  ret i64 0
}

; A chunk from the end of another thread's range, or -1 if there is none.
define internal i64 @steal(ptr %pool, i64 %thread) nounwind {
  %used.at = getelementptr i8, ptr %pool, i64 48
  %used = load atomic i64, ptr %used.at monotonic, align 8
  %after = add i64 %thread, 1
  br label %victim
victim:
  %left = phi i64 [ %used, %0 ], [ %left.next, %empty ]
  %t = phi i64 [ %after, %0 ], [ %t.next, %empty ]
  %none = icmp eq i64 %left, 0
  br i1 %none, label %nothing, label %wrap
wrap:
  %beyond = icmp uge i64 %t, %used
  %who = select i1 %beyond, i64 0, i64 %t
  %line = mul i64 %who, 128
  %offset = add i64 %line, 640
  %range.at = getelementptr i8, ptr %pool, i64 %offset
  br label %look
look:
  %v = load atomic i64, ptr %range.at acquire, align 8
  %begin = and i64 %v, 4294967295
  %end = lshr i64 %v, 32
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %claim, label %empty
claim:
  %less = sub i64 %v, 4294967296
  %swap = cmpxchg ptr %range.at, i64 %v, i64 %less acq_rel monotonic, align 8
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %got, label %look
empty:
  %left.next = sub i64 %left, 1
  %t.next = add i64 %who, 1
  br label %victim
got:
  %chunk = sub i64 %end, 1
  ret i64 %chunk
nothing:
  ret i64 -1
}

; Claim and run chunks. A worker leaves when the pool stops; the caller (thread 0) when the run is over, with 0, or when
; `slice` ticks have passed since `entered`, with 2, or with 4 where it has to advance next. `debt`: what this thread
; has to pay already.
define internal i64 @take.part(ptr %pool, i64 %thread, i64 %debt, i64 %entered, i64 %slice) nounwind {
  %date = alloca [2 x i64], align 8
  %done.at = getelementptr i8, ptr %pool, i64 128
  %asleep.at = getelementptr i8, ptr %pool, i64 256
  %caller.at = getelementptr i8, ptr %pool, i64 264
  %ctx.at = getelementptr i8, ptr %pool, i64 8
  %current.at = getelementptr i8, ptr %pool, i64 24
  %first.at = getelementptr i8, ptr %pool, i64 40
  %syscall.at = getelementptr i8, ptr %pool, i64 512
  %syscall = load ptr, ptr %syscall.at
  %spin.at = getelementptr i8, ptr %pool, i64 520
  %spin = load i64, ptr %spin.at
  %stop.at = getelementptr i8, ptr %pool, i64 536
  %turn.at = getelementptr i8, ptr %pool, i64 552
  %turn = load i64, ptr %turn.at
  %line = mul i64 %thread, 128
  %offset = add i64 %line, 640
  %range.at = getelementptr i8, ptr %pool, i64 %offset
  %note.at = getelementptr i8, ptr %range.at, i64 8
  %room.at = getelementptr i8, ptr %range.at, i64 16
  %caller = icmp eq i64 %thread, 0
  br label %look
look: ; owed: to pay; since: when waiting began, or 0; seen: the publication that was searched without success
  %owed = phi i64 [ %debt, %0 ], [ %owed, %claim ], [ %more, %worked ], [ 0, %pay ], [ %new, %last ], [ 0, %pause ],
                  [ 0, %rest ]
  %since = phi i64 [ 0, %0 ], [ 0, %claim ], [ 0, %worked ], [ 0, %pay ], [ 0, %last ], [ %from, %pause ], [ 0, %rest ]
  %seen = phi i64 [ -1, %0 ], [ %seen, %claim ], [ %seen, %worked ], [ %seen, %pay ], [ %seen, %last ],
                  [ %next, %pause ], [ %seen, %rest ]
  %now = call i64 @ingot_clock()
  %v = load atomic i64, ptr %range.at acquire, align 8
  %begin = and i64 %v, 4294967295
  %end = lshr i64 %v, 32
  %some = icmp ult i64 %begin, %end
  %debtor = icmp ne i64 %owed, 0
  br i1 %some, label %ready, label %empty
ready:
  %room = load i64, ptr %room.at
  %stayed = sub i64 %now, %room
  %due = icmp ugt i64 %stayed, %turn
  br i1 %due, label %leave, label %claim
leave:
  br i1 %debtor, label %pay, label %make.room
make.room:
  %spent.here = sub i64 %now, %entered
  %late = icmp ugt i64 %spent.here, %slice
  %reports = and i1 %caller, %late
  br i1 %reports, label %report, label %yield
yield:
  %r0 = call i64 (i64, ...) %syscall(i64 $YIELD)
  br label %rest
claim:
  %plus = add i64 %v, 1
  %swap = cmpxchg ptr %range.at, i64 %v, i64 %plus acq_rel monotonic, align 8
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %work, label %look
work:
  %chunk = phi i64 [ %begin, %claim ], [ %stolen, %search ]
  %ctx = load ptr, ptr %ctx.at
  %step = load ptr, ptr %current.at
  %first = load i64, ptr %first.at
  %which = add i64 %first, %chunk
  %ended = call i1 @stopped(ptr %ctx)
  br i1 %ended, label %worked, label %run
run:
  call void @kernel(ptr %ctx, ptr %step, i64 %which, i64 %thread)
  br label %worked
worked:
  %more = add i64 %owed, 1
  br label %look
empty:
  br i1 %debtor, label %pay, label %idle
pay:
  %before = atomicrmw sub ptr %done.at, i64 %owed acq_rel, align 8
  %was.last = icmp eq i64 %before, %owed
  br i1 %was.last, label %last, label %look
last:
  %new = call i64 @advance(ptr %pool, i64 %thread)
  %held = icmp slt i64 %new, 0
  br i1 %held, label %hold, label %look
idle:
  %next = load atomic i64, ptr %pool acquire, align 8
  %over = icmp slt i64 %next, 0
  %searched = icmp eq i64 %next, %seen
  %nothing = or i1 %over, %searched
  br i1 %nothing, label %wait, label %search
search:
  %stolen = call i64 @steal(ptr %pool, i64 %thread)
  %missed = icmp slt i64 %stolen, 0
  br i1 %missed, label %wait, label %work
wait:
  br i1 %caller, label %wait.caller, label %wait.worker
wait.caller:
  br i1 %over, label %return, label %spin.check
wait.worker:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %return, label %spin.check
spin.check:
  %fresh = icmp eq i64 %since, 0
  %from = select i1 %fresh, i64 %now, i64 %since
  %spent = sub i64 %now, %from
  %tired = icmp ugt i64 %spent, %spin
  br i1 %tired, label %sleep, label %pause
pause:
  $PAUSE
  br label %look
sleep:
  store atomic i64 0, ptr %note.at monotonic, align 8
  %tag = and i64 %next, 4294967295
  br i1 %caller, label %sleep.caller, label %sleep.worker
sleep.caller: ; for a quarter of a second, or until a signal comes: Python has to see to it
  %r5 = call i64 (i64, ...) %syscall(i64 $GETTIME, i64 1, ptr %date)
  %nanoseconds.at = getelementptr i64, ptr %date, i64 1
  %seconds = load i64, ptr %date
  %nanoseconds = load i64, ptr %nanoseconds.at
  %later = add i64 %nanoseconds, 250000000
  %carry = udiv i64 %later, 1000000000
  %below = urem i64 %later, 1000000000
  %seconds.later = add i64 %seconds, %carry
  store i64 %seconds.later, ptr %date
  store i64 %below, ptr %nanoseconds.at
  store atomic i64 1, ptr %caller.at seq_cst, align 8
  %r1 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %pool, i64 137, i64 %tag, ptr %date, i64 0, i64 2)
  store atomic i64 0, ptr %caller.at seq_cst, align 8
  %woken = icmp eq i64 %r1, 0
  br i1 %woken, label %rest, label %moved
moved: ; where the tag moved before it slept, there is work
  %next.now = load atomic i64, ptr %pool acquire, align 8
  %other = icmp ne i64 %next.now, %next
  br i1 %other, label %rest, label %report
sleep.worker:
  %a = atomicrmw add ptr %asleep.at, i64 1 seq_cst, align 8
  %stop2 = load atomic i64, ptr %stop.at seq_cst, align 8
  %stopped2 = icmp ne i64 %stop2, 0
  br i1 %stopped2, label %forget, label %sleep.now
sleep.now:
  %r2 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %pool, i64 137, i64 %tag, i64 0, i64 0, i64 1)
  %waited = icmp eq i64 %r2, 0
  br i1 %waited, label %rest, label %forget
forget: ; nobody woke us (the tag had moved, or a signal came), so nobody took us off the count
  %b = atomicrmw sub ptr %asleep.at, i64 1 seq_cst, align 8
  br label %rest
rest:
  call void @settle(ptr %pool, i64 %thread)
  %back = call i64 @ingot_clock()
  store i64 %back, ptr %room.at
  br label %look
report:
  ret i64 2
hold:
  ret i64 4
return:
  ret i64 0
}
""")
