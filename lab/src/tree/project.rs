//! A C project that takes some time to compile. The lab writes it, the same each time.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Functions of each file.
const FUNCTIONS: usize = 40;

/// The project, in a directory of its own.
pub struct Project {
    dir: PathBuf,
    files: usize,
}

impl Project {
    /// Writes the project.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn write(dir: &Path, files: usize) -> Result<Self> {
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let parts: Vec<_> = (0..files).map(|file| format!("part{file}.o")).collect();
        write("Makefile", &makefile(&parts.join(" ")))?;
        let mut header = String::new();
        let (mut sum, mut main) = (String::new(), String::from("#include <stdio.h>\n#include \"parts.h\"\n"));
        for file in 0..files {
            let _ = writeln!(header, "unsigned part{file}(unsigned x);");
            let _ = write!(sum, " + part{file}({file})");
            write(&format!("part{file}.c"), &part(file))?;
        }
        let _ = writeln!(main, "int main(void) {{ printf(\"%u\\n\", 0u{sum}); return 0; }}");
        write("parts.h", &header)?;
        write("main.c", &main)?;
        Ok(Self { dir: dir.to_owned(), files })
    }

    /// The directory of the project.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of the program that make builds.
    pub fn program(&self) -> PathBuf {
        self.dir.join("all-parts")
    }

    /// Removes what make has made, so that it makes everything again.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn clean(&self) -> Result<()> {
        let objects = (0..self.files).map(|file| self.dir.join(format!("part{file}.o")));
        for path in objects.chain([self.dir.join("main.o"), self.program()]) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn makefile(parts: &str) -> String {
    format!(
        "all-parts: main.o {parts}\n\tgcc -o $@ $^\n\
         main.o {parts}: parts.h\n\
         %.o: %.c\n\tgcc -O1 -c -o $@ $<\n"
    )
}

/// The text of a C file: functions that each have loops and a switch, and one function that calls them all.
fn part(file: usize) -> String {
    let mut text =
        String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include \"parts.h\"\n");
    let mut calls = String::new();
    for number in 0..FUNCTIONS {
        let factor = 2 * (file * FUNCTIONS + number) + 3;
        let _ = writeln!(
            text,
            "static unsigned f{number}(unsigned x, unsigned char *bytes, size_t count)\n{{\n    \
             unsigned table[16], sum = x * {factor}u;\n    \
             for (int i = 0; i < 16; i++)\n        table[i] = sum ^ (unsigned)i * {factor}u;\n    \
             for (size_t i = 0; i < count; i++) {{\n        \
             switch ((bytes[i] + sum) % 7) {{\n        \
             case 0: sum += table[i % 16]; break;\n        \
             case 1: sum ^= table[(i + {number}) % 16] << 3; break;\n        \
             case 2: bytes[i] ^= (unsigned char)sum; break;\n        \
             case 3: sum = sum >> 5 | sum << 27; break;\n        \
             case 4: table[sum % 16] += (unsigned)i; break;\n        \
             default: sum -= bytes[count - 1 - i]; break;\n        \
             }}\n    }}\n    \
             for (int i = 0; i < 16; i++)\n        sum = sum * 31u + table[i];\n    \
             return sum;\n}}"
        );
        let _ = writeln!(calls, "    x = f{number}(x, bytes, sizeof bytes);");
    }
    let _ = writeln!(
        text,
        "unsigned part{file}(unsigned x)\n{{\n    unsigned char bytes[64];\n    \
         memset(bytes, {}, sizeof bytes);\n{calls}    return x;\n}}",
        file % 251
    );
    text
}
