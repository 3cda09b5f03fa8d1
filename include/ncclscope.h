/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libnccl-profiler-ncclscope.so that an application may call (docs/control.md).
 *
 * NCCL loads the plugin with RTLD_LOCAL. A program therefore does not link with it, but looks the
 * functions up in the loaded file, with the types that this header declares:
 *
 *     void* plugin = dlopen("libnccl-profiler-ncclscope.so", RTLD_NOW | RTLD_NOLOAD);
 *     NCCLSCOPE_FIND(plugin, ncclscope_start);
 *     if (ncclscope_start != NULL && ncclscope_start("for=5s") == NCCLSCOPE_OK) ...
 *
 * All functions act on the whole process, on all of its communicators, unless they say otherwise.
 * They may be called from any thread, but neither from a signal handler nor from a callback of
 * NCCL. They preserve errno. Strings are UTF-8, end with a null byte, and are read only during the
 * call. In a forked child, functions that return a result return NCCLSCOPE_OFF.
 */
#ifndef NCCLSCOPE_H
#define NCCLSCOPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The results of functions that return int and are not documented otherwise. */
#define NCCLSCOPE_OK 0     /* done */
#define NCCLSCOPE_OFF 1    /* this process does not record, or not yet */
#define NCCLSCOPE_BAD 2    /* an argument is invalid */
#define NCCLSCOPE_SYSTEM 3 /* a system call failed */

/*
 * Declares a local variable named after a function of this header, with that function's type, and
 * looks it up in `plugin`, a handle from dlopen. It is NULL if the plugin has no such function.
 * It needs <dlfcn.h> and the __typeof__ of GCC and Clang.
 */
#define NCCLSCOPE_FIND(plugin, function) \
    __typeof__(&function) function = (__typeof__(function))dlsym(plugin, #function)

/* The plugin's version, such as "0.1.0". Never NULL; valid for the life of the process. */
const char* ncclscope_version(void);

/*
 * The reason why the calling thread's last call of a function with a result failed: one sentence of
 * at most 255 bytes, empty if the call succeeded. Never NULL; valid until the thread's next call.
 */
const char* ncclscope_error(void);

/*
 * Records the operations that are issued from now on, or those that `options` select. NULL or "":
 * all operations, without an end. Options are words separated by spaces: "for=5s" (ms, s, m, h),
 * "steps=10" (training steps, see ncclscope_set_step), "at=SECONDS" (since 1970, host clock, at
 * most a week ahead), "sample=16" or "sample=1/16" (every 16th operation). A request before the
 * first communicator takes effect with it. A later request replaces this one.
 * NCCLSCOPE_BAD: a word is unknown, or the string is longer than 4095 bytes.
 */
int ncclscope_start(const char* options);

/* Stops recording operations that are issued from now on. */
int ncclscope_stop(void);

/* 1 while new operations are recorded, else 0. */
int ncclscope_is_started(void);

/*
 * Copies the recording as it is now, and returns when the copy is complete; recording continues.
 * `path` is a new file that ends in ".nscope", or a directory; NULL is a new directory beside the
 * recording. NCCLSCOPE_BAD: the path is longer than 4095 bytes. NCCLSCOPE_SYSTEM: the file already
 * exists, or cannot be written.
 */
int ncclscope_dump(const char* path);

/* Records a mark `name` at the current time; a long name is truncated. NCCLSCOPE_BAD: `name` is
 * NULL. */
int ncclscope_mark(const char* name);

/* Reports that a training step begins; `step` is its number. */
int ncclscope_set_step(uint64_t step);

/*
 * Sets the role of a communicator: "tp", "dp", ... `comm_hash` is NCCL's commHash, which
 * `ncclscope ls` prints; a long role is truncated. NCCLSCOPE_BAD: `role` is NULL.
 */
int ncclscope_set_role(uint64_t comm_hash, const char* role);

/*
 * Reports that an operator of the application begins on the calling thread: NCCL's API calls on
 * this thread are recorded with `id` until the matching ncclscope_pop_external_id. Operators may
 * nest; an operator that is nested more than 64 deep counts as the operator around it.
 */
void ncclscope_push_external_id(uint64_t id);

/* Reports that the operator that began last on the calling thread ends. */
void ncclscope_pop_external_id(void);

/*
 * Makes API calls ask `function` for the id of their thread's operator (0: none) instead of using
 * ncclscope_push_external_id; NULL: they no longer do. The plugin calls `function` on the thread of
 * the API call. It must neither wait nor call NCCL, and must stay callable for the life of the
 * process.
 */
void ncclscope_ask_external_id(uint64_t (*function)(void));

/*
 * The watchdog calls `callback` for each operation that hangs, and again when it has recovered;
 * NULL: no more calls, but a call in progress continues. `json` is the report (docs/hang.md), valid
 * during the call; `user` is passed unchanged. The call comes on a thread of the plugin that does
 * nothing else, so that `callback` may wait and call the functions of this header, but not NCCL.
 * `callback` and `user` must stay usable for the life of the process.
 */
int ncclscope_on_hang(void (*callback)(const char* json, void* user), void* user);

/*
 * A drill: for `seconds`, up to an hour, a made-up operation stands still. The watchdog reports it
 * after one second, or after half of `seconds` if that is less, with "drill":true, and later
 * reports that it has recovered. NCCLSCOPE_BAD: `seconds` is not greater than 0, or greater than
 * 3600; or NCCLSCOPE_HANG_SEC is 0.
 */
int ncclscope_simulate_hang(double seconds);

#ifdef __cplusplus
}
#endif

#endif
