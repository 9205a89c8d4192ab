//! Asynchronous reads and writes.

use crate::agent::aio;
use libc::{aiocb, c_int, c_long, c_void, sigevent};

export! {
    aio_read(block: *mut aiocb) -> c_int = aio::read;
    aio_read64(block: *mut aiocb) -> c_int = aio::read;
    aio_write(block: *mut aiocb) -> c_int = aio::write;
    aio_write64(block: *mut aiocb) -> c_int = aio::write;
    aio_fsync(operation: c_int, block: *mut aiocb) -> c_int = aio::sync;
    aio_fsync64(operation: c_int, block: *mut aiocb) -> c_int = aio::sync;
    lio_listio(mode: c_int, blocks: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int = aio::list;
    lio_listio64(mode: c_int, blocks: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int = aio::list;
    io_submit(context: *mut c_void, n: c_long, blocks: *const *mut c_void) -> c_int = aio::submit;
}
