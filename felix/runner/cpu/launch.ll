; TVM's parallel loops on the threads of an OpenMP runtime (openmp.py).
;
; `felix_openmp` takes the address of an array of functions, and gives that of `launch`, which is in
; the place of TVMBackendParallelLaunch: it calls a function for the tasks 0 to n - 1 of a loop. A
; thread takes every m-th task, for OpenMP may give fewer threads than it was asked for.

; GOMP_parallel, omp_get_max_threads, omp_get_thread_num, omp_get_num_threads,
; TVMFFIErrorSetRaisedFromCStr
%functions = type { ptr, ptr, ptr, ptr, ptr }
%work = type { ptr, ptr, i32, i32 }   ; the function, its data, tasks, what a failed task returned
%env = type { ptr, i32 }              ; TVMParallelGroupEnv: no barrier, tasks

@functions = internal global %functions zeroinitializer
@kind = internal constant [13 x i8] c"RuntimeError\00"
@message = internal constant [40 x i8] c"a task of a parallel loop of TVM failed\00"

define internal i32 @launch(ptr %function, ptr %data, i32 %asked) {
  %work = alloca %work
  %max_threads = load ptr, ptr getelementptr (%functions, ptr @functions, i32 0, i32 1)
  %most = call i32 %max_threads()
  %all = icmp eq i32 %asked, 0
  %tasks = select i1 %all, i32 %most, i32 %asked
  store ptr %function, ptr %work
  %place1 = getelementptr %work, ptr %work, i32 0, i32 1
  store ptr %data, ptr %place1
  %place2 = getelementptr %work, ptr %work, i32 0, i32 2
  store i32 %tasks, ptr %place2
  %place3 = getelementptr %work, ptr %work, i32 0, i32 3
  store i32 0, ptr %place3
  %parallel = load ptr, ptr @functions
  call void %parallel(ptr @thread, ptr %work, i32 %tasks, i32 0)
  %status = load i32, ptr %place3
  %is_well = icmp eq i32 %status, 0
  br i1 %is_well, label %end, label %failed
failed:                               ; the error of another thread is not this one's
  %raise = load ptr, ptr getelementptr (%functions, ptr @functions, i32 0, i32 4)
  call void %raise(ptr @kind, ptr @message)
  br label %end
end:
  ret i32 %status
}

define internal void @thread(ptr %work) {
begin:
  %env = alloca %env
  %function = load ptr, ptr %work
  %place1 = getelementptr %work, ptr %work, i32 0, i32 1
  %data = load ptr, ptr %place1
  %place2 = getelementptr %work, ptr %work, i32 0, i32 2
  %tasks = load i32, ptr %place2
  %place3 = getelementptr %work, ptr %work, i32 0, i32 3
  store ptr null, ptr %env
  %count = getelementptr %env, ptr %env, i32 0, i32 1
  store i32 %tasks, ptr %count
  %thread_number = load ptr, ptr getelementptr (%functions, ptr @functions, i32 0, i32 2)
  %first = call i32 %thread_number()
  %n_threads = load ptr, ptr getelementptr (%functions, ptr @functions, i32 0, i32 3)
  %step = call i32 %n_threads()
  br label %next
next:
  %task = phi i32 [ %first, %begin ], [ %after, %ended ]
  %is_left = icmp slt i32 %task, %tasks
  br i1 %is_left, label %run, label %end
run:
  %status = call i32 %function(i32 %task, ptr %env, ptr %data)
  %is_well = icmp eq i32 %status, 0
  br i1 %is_well, label %ended, label %failed
failed:
  store atomic i32 %status, ptr %place3 monotonic, align 4
  br label %ended
ended:
  %after = add i32 %task, %step
  br label %next
end:
  ret void
}

define dllexport i32 @__tvm_ffi_felix_openmp(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %value = getelementptr i64, ptr %arguments, i32 1
  %array = load ptr, ptr %value
  %functions = load %functions, ptr %array
  store %functions %functions, ptr @functions
  store i64 1, ptr %result            ; an integer
  %place = getelementptr i64, ptr %result, i32 1
  %address = ptrtoint ptr @launch to i64
  store i64 %address, ptr %place
  ret i32 0
}

!llvm.module.flags = !{!0}
!0 = !{i32 2, !"tvm_target", !"{\22kind\22:\22llvm\22}"}
