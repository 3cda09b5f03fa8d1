// SPDX-License-Identifier: Apache-2.0
//! Definitions of exported functions: under CUDA's names, with CUDA's way to return errors.

/// Defines exported C functions, and `table()`, which lists them by name. Their bodies return
/// [`crate::error::Result`], of which the function `$status` makes a status.
macro_rules! exported {
    ($status:path; $(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block
    )*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// The arguments must satisfy the contract of the CUDA function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
                $status(move || $body)
            }
        )*

        /// Name and address of every function of this module.
        pub(crate) fn table() -> Vec<(&'static str, *const ())> {
            vec![$((stringify!($name), $name as *const ())),*]
        }
    };
}

/// Defines functions of the CUDA runtime.
macro_rules! runtime {
    ($($functions:tt)*) => {
        $crate::exports::exported! { $crate::error::status; $($functions)* }
    };
}

/// Defines functions of the CUDA driver. NCCL finds them through the look-up; a profiler looks for
/// the library `libcuda.so.1`, which a link of that name to this one is.
macro_rules! driver {
    ($($functions:tt)*) => {
        $crate::exports::exported! { $crate::error::driver_status; $($functions)* }
    };
}

pub(crate) use {driver, exported, runtime};
