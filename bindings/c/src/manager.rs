//! Version, errors, start and stop.

use crate::border::{self, WORDS, call, invalid, path, put, sized};
use crate::table;
use elbowroom::Division;
use elbowroom_house::failure::Failure;
use elbowroom_house::house::{self, Gate, Settings};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;

/// The manager of the process. It has the budget, and serves the mappings.
pub struct er_manager {
    _opaque: [u8; 0],
}

/// In er_config: the library chooses.
pub const ER_AUTO: u64 = u64::MAX;

/// In er_config.flags: the swap file is encrypted, with a key that is only in the process's memory.
pub const ER_SWAP_ENCRYPT: u32 = 1;

/// In er_config.policy: each group's memory of files is divided as suits how it uses its chunks.
pub const ER_POLICY_AUTO: u32 = 0;

/// In er_config.policy: most of memory is for what was used again, a sixteenth for second chances.
pub const ER_POLICY_EVEN: u32 = 1;

/// In er_config.policy: what has come in first stays, as much as fits: for passes over more than memory.
pub const ER_POLICY_KEPT: u32 = 2;

/// In er_config.policy: half of memory is for second chances: for chunks of which some are used more often,
/// such as experts of models.
pub const ER_POLICY_LONG: u32 = 3;

/// What a manager is started with. Initialize it with er_config_init, and then change what you want.
#[repr(C)]
pub struct er_config {
    /// Bytes of this struct; er_config_init sets it. A later version of the library may have more fields.
    pub size: usize,
    /// The budget: bytes of memory that all mappings, and what describes them, may have together. At least
    /// 16 MiB. ER_AUTO: three quarters of the machine's memory, or of what its control group permits.
    pub memory: u64,
    /// Bytes of anonymous memory that may be in the swap file. 0: none. ER_AUTO: as much as there is room
    /// for in the directory, and as the budget can describe (40 times its size).
    pub swap: u64,
    /// The directory of the swap file, on a disk. The file has no name, and is gone with the process. NULL:
    /// /var/tmp.
    pub swap_dir: *const c_char,
    /// ER_SWAP_ENCRYPT, or 0.
    pub flags: u32,
    /// Which pages of files go when memory is short: ER_POLICY_AUTO, ER_POLICY_EVEN, ER_POLICY_KEPT or
    /// ER_POLICY_LONG.
    pub policy: u32,
    /// Given to the two functions below.
    pub context: *mut c_void,
    /// Called with a line of text, without its end, about a failure that is reported in no other way (for
    /// example a write-back that has failed), by a thread of the manager. It must not use managed memory,
    /// nor call the library. NULL: the line goes to standard error.
    pub report: Option<unsafe extern "C" fn(context: *mut c_void, line: *const c_char)>,
    /// Called when a group uses more than its `high`, in bytes, and nothing of it can be reclaimed: at most
    /// once a minute for each group. `group` is the number that er_group_get_stats gives. As report else.
    pub high_stuck:
        Option<unsafe extern "C" fn(context: *mut c_void, group: u64, usage_bytes: u64, high_bytes: u64)>,
    /// For tests: faults that are injected into reads and writes, for example "read:eio:file=name".
    /// NULL: none.
    pub inject: *const c_char,
}

fn defaults() -> er_config {
    er_config {
        size: size_of::<er_config>(),
        memory: ER_AUTO,
        swap: ER_AUTO,
        swap_dir: std::ptr::null(),
        flags: 0,
        policy: ER_POLICY_AUTO,
        context: std::ptr::null_mut(),
        report: None,
        high_stuck: None,
        inject: std::ptr::null(),
    }
}

/// The version of the library, as text: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn er_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!(),
        };
    VERSION.as_ptr()
}

/// What the calling thread's last call that failed has to say: a sentence with what could not be done, why,
/// and what to do. "" before the first failure. Valid until the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn er_error() -> *const c_char {
    border::last()
}

/// Sets all fields of a config to their defaults. `size`: sizeof(er_config).
///
/// # Safety
/// `config` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_config_init(config: *mut er_config, size: usize) {
    let mut value = defaults();
    value.size = size;
    // SAFETY: the caller's promise. Too small a size is found by er_start.
    let _ = unsafe { border::fill(config, size, &value, "er_config") };
}

/// The context of the program's functions.
#[derive(Clone, Copy)]
struct Context(*mut c_void);

// SAFETY: the pointer is only given back to the program, which has been told that any thread does so.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Starts the manager of the process: some threads, which have a file table of their own and block all
/// signals, and address space. A process has one manager at a time; budgets for parts of a program are
/// groups.
///
/// `config`: NULL for the defaults. `manager`: where the handle goes.
///
/// Errors: EBUSY: there is one already. ENOTSUP: this machine or this user cannot have one; er_error says
/// what is missing, and `elbowroom doctor` what to do. EINVAL, E2BIG: the config. Any thread may call it.
///
/// # Safety
/// The pointers are NULL, or as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_start(config: *const er_config, manager: *mut *mut er_manager) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe {
            put(manager, std::ptr::null_mut(), "manager")?;
            let least = std::mem::offset_of!(er_config, inject) + size_of::<*const c_char>();
            start(settings(&sized(config, defaults(), least, "er_config")?)?)?
        };
        // SAFETY: as above.
        unsafe { put(manager, handle as *mut er_manager, "manager") }
    })
}

/// Starts the manager; gives its handle.
pub fn start(settings: Settings) -> Result<usize, Failure> {
    house::speak(&WORDS);
    table::register();
    house::write_back_at_exit();
    house::start_with(settings, table::enter_manager)
}

/// # Safety
/// The pointers of the config are NULL, or as described.
unsafe fn settings(config: &er_config) -> Result<Settings, Failure> {
    if config.flags & !ER_SWAP_ENCRYPT != 0 {
        return Err(invalid(format!(
            "er_config.flags are {:#x}, and only ER_SWAP_ENCRYPT is known",
            config.flags
        )));
    }
    let division = match config.policy {
        ER_POLICY_AUTO => None,
        ER_POLICY_EVEN => Some(Division::Even),
        ER_POLICY_KEPT => Some(Division::Kept),
        ER_POLICY_LONG => Some(Division::Long),
        other => return Err(invalid(format!("er_config.policy is {other}, and no ER_POLICY_..."))),
    };
    let optional = |at: *const c_char, what: &str| {
        // SAFETY: the caller's promise.
        if at.is_null() { Ok(None) } else { unsafe { path(at, what) }.map(Some) }
    };
    let chosen = |value: u64| (value != ER_AUTO).then_some(value);
    let context = Context(config.context);
    let mut settings = Settings {
        memory: chosen(config.memory),
        swap: chosen(config.swap),
        swap_dir: optional(config.swap_dir, "swap_dir")?,
        division,
        swap_encrypt: config.flags & ER_SWAP_ENCRYPT != 0,
        inject: optional(config.inject, "inject")?.map(|text| text.to_string_lossy().into_owned()),
        ..Settings::default()
    };
    if let Some(report) = config.report {
        settings.report = Some(Arc::new(move |line: &str| {
            let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
            // SAFETY: the program's function, with its own pointer.
            unsafe { report(context.pointer(), line.as_ptr()) };
        }));
    }
    if let Some(high_stuck) = config.high_stuck {
        settings.on_high_stuck = Some(Arc::new(move |stuck| {
            let (group, usage, high) = (stuck.group as u64, stuck.usage_bytes, stuck.high_bytes);
            // SAFETY: as above.
            unsafe { high_stuck(context.pointer(), group, usage, high) };
        }));
    }
    Ok(settings)
}

/// Stops the manager: what was stored is written to the files, files and groups are closed, threads end.
/// Returns when all of that is done. Another manager can be started then.
///
/// Errors: EBUSY: mappings exist, or other threads' calls are under way; nothing was done. EINVAL: this is no
/// manager.
///
/// # Safety
/// None: any value is checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_stop(manager: *mut er_manager) -> c_int {
    call(|| {
        // Before the manager is taken out, so that no fork comes between that and its end.
        let gate = Gate::lock();
        let house = table::take_manager(manager as usize)?;
        // SAFETY: the table has no mapping, no group and no call any more, and gives none.
        unsafe { house::stop(house, &gate) };
        Ok(())
    })
}
