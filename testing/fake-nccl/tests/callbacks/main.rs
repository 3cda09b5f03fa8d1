// SPDX-License-Identifier: Apache-2.0
/*!
The built plugin under scripts of callbacks: its recording is compared with what was played,
callback by callback for small scripts, by count for large ones.

The list has each kind of abuse and its test. Each test runs in every API version that can express
the abuse, with descriptors full of garbage except for the fields that are set, and with poison in
each handle's slot, which must be overwritten.

- NULL for handle, slot, descriptor, arguments, context, mask, name, logger:
  `faults::null_is_taken_wherever_a_pointer_goes`,
  `ends::names_of_communicators_may_be_missing_or_long`
- strings of descriptors that are NULL, too long, or no UTF-8: `faults::names_may_be_missing`,
  `hostile::names_may_be_longer_than_the_room_for_them`
- stop twice, record after stop:
  `faults::a_second_stop_and_a_state_after_it_change_no_step_and_no_operation`
- callbacks after `finalize`: `faults::events_after_finalize_are_recorded_with_their_communicator`
- types 0, 65536, 1 << 40; state 99:
  `faults::unknown_types_and_states_are_counted_and_nothing_else`
- handles and contexts that never were: `faults::handles_that_never_were_touch_nothing`
- parent from another context: `hostile::a_parent_may_be_another_communicators`
- PXN: foreign pid, wild pointers, contexts of another process:
  `operations::work_of_another_process_has_no_parent_here`
- a million unmatched starts: `loads::a_million_events_without_a_stop_cost_no_memory`
- the mask is read-only outside of `init`: `hostile::the_mask_is_written_by_init_alone`
- `finalize` with 1000 open operations:
  `loads::what_is_open_at_finalize_stays_open_in_the_recording`
- 64 concurrent `init`, and `finalize`: `loads::communicators_may_be_initialised_all_at_once`
- load, `finalize`, `dlclose`, load again: `ends::the_library_may_go_and_come_again`
- `dlclose` while other communicators live: `ends::the_library_may_go_while_others_still_call`
- `init`, `finalize` and the library over and over:
  `loads::communicators_and_libraries_that_come_and_go_leave_nothing_behind`
- fork, with threads inside callbacks: `ends::a_child_of_busy_threads_goes_on_and_records_nothing`
- fork and exec: `ends::a_child_that_is_a_program_of_its_own_records_its_own`
- SIGTERM while threads play: unhandled, handled, exit in the handler:
  `ends::a_termination_amid_callbacks_leaves_a_recording`
- SIGKILL, `exit` and `_exit` while threads play, nothing destroyed:
  `ends::an_end_without_destroy_leaves_a_recording`
- the main thread ends first: `ends::the_main_thread_may_end_before_the_others`
- a process that must not read the processor's counter:
  `faults::a_process_that_must_not_read_the_counter_goes_on_without_a_recording`
- threads by the thousand: `loads::threads_may_come_and_go_by_the_thousand`, and where the process
  has many `pthread` keys: `loads::threads_may_come_and_go_where_there_are_many_keys`
- ProxyOps that NCCL never stops, and a hang behind them:
  `hang::proxy_ops_that_nccl_never_stops_cost_nothing_and_hide_no_hang`
- signal handlers of the host amid callbacks:
  `strain::the_hosts_signal_handlers_may_interrupt_anything`, and handlers that make callbacks
  themselves: `strain::a_host_whose_signal_handlers_make_callbacks_survives`
- more events than the lanes, or the file, have room for:
  `strain::a_burst_is_recorded_or_counted_and_what_follows_is_recorded`,
  `strain::what_a_small_ring_lets_go_is_counted`
- the least stack that a thread can have: `strain::a_small_stack_is_enough_for_every_callback`
- a host's own allocator: `strain::no_callback_calls_the_hosts_allocator`
- 16 communicators, a full disk, 64 MiB of shared memory: `tests/life.rs`
- paths longer than 255 and 4096 bytes: `ends::a_path_may_be_long`,
  `ends::a_path_that_is_too_long_is_one_line_at_each_end`
- a logger that is NULL, garbage, called by many threads, unloaded:
  `ends::the_logger_is_called_in_order_or_not_at_all`
- what shims leave unset: `hostile::garbage_around_the_fields_is_in_no_record`
- recording that is started, stopped, sampled and copied amid operations, by the application and by
  signals: `windows`
- operations that hang, at each place that one rank can distinguish, and operations that only seem
  to hang: `hang`
- further profilers chained behind this plugin, and files that are no profiler: `chained`
- 64 and 256 channels open at once: `loads::all_channels_there_are_can_be_open_at_once`
- events of queue pairs and sockets:
  `operations::network_events_say_what_the_plugin_attached_and_survive_double_stops`
- CE and KernelPhase: `operations::a_copy_engine_collective_is_a_tree_by_parent`,
  `operations::phases_belong_to_their_kernel_channel`
- AMD's RCCL, with its clock, its channels and its descriptors: `rccl`
- any callback, in no order, on any handle, from several threads:
  `hostile::no_order_at_all_is_survived_and_accounted_for`
*/

mod chained;
mod common;
mod ends;
mod faults;
mod hang;
mod hostile;
mod loads;
mod operations;
mod rccl;
mod recorded;
mod strain;
mod windows;
