"""The entry points of a run and of a worker, in LLVM IR, and the decision whether a run wakes workers.

Waking a sleeping worker takes 5 to 20 us, more than half of a small program. So if workers sleep, a run that took less
than four times `spin` with them is tried alone, and later runs use the faster way. The time of each way is the minimum
so far, but grows by up to an eighth with each slower run, and that of the other way shrinks by 1/1024, so that it is
tried again now and then. The third of three runs in close succession wakes the workers in any case, as they stay awake
between such runs. Results are bitwise the same, as the chunks are.

The fields of pool and context are described in `targets/cpu/driver.py`.
"""

from __future__ import annotations

ENTRY = """
; `taken`: what a run now took, of the kind whose time is at `time.at`; `other.at`: that of the other kind.
define internal void @learn(ptr %time.at, ptr %other.at, i64 %taken) nounwind {
  %old = load i64, ptr %time.at
  %unknown = icmp eq i64 %old, 0
  %eighth = lshr i64 %old, 3
  %more = add i64 %old, %eighth
  %less = icmp ult i64 %taken, %more
  %seen = or i1 %unknown, %less
  %new = select i1 %seen, i64 %taken, i64 %more
  store i64 %new, ptr %time.at
  %other = load i64, ptr %other.at
  %part = lshr i64 %other, 10
  %shrunk = sub i64 %other, %part
  store i64 %shrunk, ptr %other.at
  ret void
}

; Run the steps until they are over, and return 0; or else, after a slice: the run goes on when it is called again.
define i64 @ingot_run(ptr %ctx) nounwind {
  %pool = load ptr, ptr %ctx
  %slice.at = getelementptr i8, ptr %ctx, i64 72
  %slice = load i64, ptr %slice.at
  %kind.at = getelementptr i8, ptr %ctx, i64 80
  %kind = load i64, ptr %kind.at
  %alone.at = getelementptr i8, ptr %ctx, i64 56
  %woken.at = getelementptr i8, ptr %ctx, i64 64
  %entered.at = getelementptr i8, ptr %ctx, i64 128
  %now = call i64 @ingot_clock()
  store i64 %now, ptr %entered.at
  %single = icmp eq ptr %pool, null
  br i1 %single, label %by.itself, label %with.pool
by.itself:
  %more.alone = call i64 @alone(ptr %ctx)
  store i64 %more.alone, ptr %kind.at
  ret i64 %more.alone
with.pool:
  switch i64 %kind, label %several [ i64 1, label %by.itself
                                     i64 2, label %continue
                                     i64 4, label %begin ]
several:
  %workers.at = getelementptr i8, ptr %pool, i64 256
  %spin.at = getelementptr i8, ptr %pool, i64 520
  %spin = load i64, ptr %spin.at
  %ended.at = getelementptr i8, ptr %pool, i64 576
  %row.at = getelementptr i8, ptr %pool, i64 584
  %ended = load i64, ptr %ended.at
  %gap = sub i64 %now, %ended
  %soon = icmp ult i64 %gap, %spin
  %row = load i64, ptr %row.at
  %longer = add i64 %row, 1
  %row.now = select i1 %soon, i64 %longer, i64 0
  store i64 %row.now, ptr %row.at
  %sleepers = load atomic i64, ptr %workers.at monotonic, align 8
  %asleep = icmp ne i64 %sleepers, 0
  %rare = icmp ult i64 %row.now, 2
  %choice = and i1 %asleep, %rare
  br i1 %choice, label %weigh, label %parallel
weigh:
  %alone = load i64, ptr %alone.at
  %woken = load i64, ptr %woken.at
  %most = shl i64 %spin, 2
  %brief = icmp ult i64 %woken, %most
  %known = icmp ne i64 %woken, 0
  %better = icmp ule i64 %alone, %woken
  %small = and i1 %brief, %known
  %without = and i1 %small, %better
  br i1 %without, label %spare, label %parallel
spare:
  %more.spare = call i64 @alone(ptr %ctx)
  %end = call i64 @ingot_clock()
  store i64 %end, ptr %ended.at
  %taken = sub i64 %end, %now
  call void @learn(ptr %alone.at, ptr %woken.at, i64 %taken)
  store i64 %more.spare, ptr %kind.at
  ret i64 %more.spare
parallel:
  %ctx.at = getelementptr i8, ptr %pool, i64 8
  store ptr %ctx, ptr %ctx.at
  %index.at = getelementptr i8, ptr %pool, i64 16
  store i64 0, ptr %index.at
  %round.at = getelementptr i8, ptr %pool, i64 32
  store i64 0, ptr %round.at
  %turn.at = getelementptr i8, ptr %pool, i64 552
  %turn = load i64, ptr %turn.at
  %room.at = getelementptr i8, ptr %pool, i64 656
  %room = load i64, ptr %room.at
  %since = sub i64 %now, %room
  %new = icmp ugt i64 %since, %turn
  br i1 %new, label %arrive, label %begin
arrive: ; the caller was elsewhere for a while: it need not make room at once
  store i64 %now, ptr %room.at
  %noted = call i64 @note(ptr %pool, i64 0)
  br label %begin
begin:
  %fresh = phi i1 [ %asleep, %parallel ], [ %asleep, %arrive ], [ 0, %with.pool ]
  %debt = call i64 @advance(ptr %pool, i64 0)
  %holds = icmp slt i64 %debt, 0
  br i1 %holds, label %pause, label %continue
continue:
  %learns = phi i1 [ %fresh, %begin ], [ 0, %with.pool ]
  %owed = phi i64 [ %debt, %begin ], [ 0, %with.pool ]
  %more = call i64 @take.part(ptr %pool, i64 0, i64 %owed, i64 %now, i64 %slice)
  br label %pause
pause:
  %kind.next = phi i64 [ 4, %begin ], [ %more, %continue ]
  %first = phi i1 [ %fresh, %begin ], [ %learns, %continue ]
  store i64 %kind.next, ptr %kind.at
  %over = call i64 @ingot_clock()
  %over.at = getelementptr i8, ptr %pool, i64 576
  store i64 %over, ptr %over.at
  br i1 %first, label %note, label %return
note: ; of a run of several slices the first: it is long
  %all = sub i64 %over, %now
  call void @learn(ptr %woken.at, ptr %alone.at, i64 %all)
  br label %return
return:
  ret i64 %kind.next
}

; End a run that is not over: chunks that have begun are finished, others are not run.
define void @ingot_end(ptr %ctx) nounwind {
  %kind.at = getelementptr i8, ptr %ctx, i64 80
  %kind = load i64, ptr %kind.at
  switch i64 %kind, label %several [ i64 0, label %return
                                     i64 1, label %alone ]
alone:
  %step.at = getelementptr i8, ptr %ctx, i64 88
  %chunk.at = getelementptr i8, ptr %ctx, i64 96
  store i64 0, ptr %step.at
  store i64 0, ptr %chunk.at
  store i64 0, ptr %kind.at
  br label %return
several:
  %stop.at = getelementptr i8, ptr %ctx, i64 104
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  br label %wait
wait:
  %more = call i64 @ingot_run(ptr %ctx)
  %going = icmp ne i64 %more, 0
  br i1 %going, label %wait, label %ended
ended:
  store atomic i64 0, ptr %stop.at seq_cst, align 8
  br label %return
return:
  ret void
}

define void @ingot_worker(ptr %pool) nounwind {
  %joined.at = getelementptr i8, ptr %pool, i64 528
  %before = atomicrmw add ptr %joined.at, i64 1 seq_cst, align 8
  %thread = add i64 %before, 1
  %home = call i64 @take.part(ptr %pool, i64 %thread, i64 0, i64 0, i64 0)
  ret void
}

; Send the workers home. The tag moves so that one about to sleep sees it; no run may be under way.
define void @ingot_stop(ptr %pool) nounwind {
  %stop.at = getelementptr i8, ptr %pool, i64 536
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  %old = load atomic i64, ptr %pool monotonic, align 8
  %next = add i64 %old, 1
  %tag = and i64 %next, 4294967295
  %new = or i64 %tag, -9223372036854775808
  store atomic i64 %new, ptr %pool seq_cst, align 8
  call void @wake.workers(ptr %pool, i64 2147483647)
  ret void
}
"""
