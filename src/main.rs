//! The command `keygate`; everything it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    keygate::cli::main()
}
