//! How many fields and methods each type of a crate has, for the tidy test.

use std::collections::BTreeMap;

use syn::{ImplItem, Item, Type};

use crate::source::Source;

/// The sizes of a type.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Of a struct or union.
    pub fields: usize,
    /// Over all blocks of methods, traits included.
    pub methods: usize,
}

/// The types of a crate's sources, by the path of their module and their name, as in `space::view::Space`.
#[derive(Debug, Default)]
pub struct Types {
    sizes: BTreeMap<String, Size>,
    /// Blocks of methods: the module, the type's name, and how many.
    methods: Vec<(Vec<String>, String, usize)>,
    /// The named fields of all types, each with the names that its type is made of; of enums, the variants.
    fields: Vec<Field>,
}

/// A named field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The name of the type that has it.
    pub of: String,
    /// Its own.
    pub name: String,
    /// The names in its type, in their order: `Mutex`, `Vec`, `Job`.
    pub types: Vec<String>,
}

impl Types {
    /// Those of the crate whose sources, with `lib.rs` or `main.rs`, are in the directory `src`. What exists
    /// in tests only is left out.
    ///
    /// # Panics
    /// If a source cannot be read, or is no Rust.
    pub fn read(src: &str) -> Self {
        let mut types = Self::default();
        for source in Source::all(src, &[".rs"]) {
            if source.path.ends_with("/tests.rs") || source.path.contains("/tests/") {
                continue;
            }
            let inside = source.path.strip_prefix(src).unwrap_or(&source.path).trim_start_matches('/');
            let module = inside.trim_end_matches(".rs").split('/').map(str::to_owned);
            let module = module.filter(|name| !matches!(name.as_str(), "mod" | "lib" | "main"));
            types.add(&source.path, &source.text, module.collect());
        }
        types
    }

    /// Adds the items of a file.
    ///
    /// # Panics
    /// If the text is no Rust.
    pub fn add(&mut self, path: &str, text: &str, module: Vec<String>) {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        self.items(&file.items, &module);
    }

    /// The types with their sizes. A block of methods belongs to the type of that name in the nearest module
    /// above it, or anywhere.
    pub fn sizes(mut self) -> BTreeMap<String, Size> {
        for (module, name, methods) in std::mem::take(&mut self.methods) {
            let near = (0..=module.len()).rev().map(|depth| key(&module[..depth], &name));
            let far = self.sizes.keys().find(|key| key.rsplit("::").next() == Some(&name)).cloned();
            let found = near.filter(|key| self.sizes.contains_key(key)).chain(far).next();
            // Types of other crates have traits of this one.
            if let Some(size) = found.and_then(|key| self.sizes.get_mut(&key)) {
                size.methods += methods;
            }
        }
        self.sizes
    }

    /// The fields of all types.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn add_field(&mut self, of: &syn::Ident, name: &syn::Ident, types: Vec<String>) {
        self.fields.push(Field { of: of.to_string(), name: name.to_string(), types });
    }

    fn items(&mut self, items: &[Item], module: &[String]) {
        for item in items {
            let (name, fields) = match item {
                Item::Struct(item) => (&item.ident, item.fields.len()),
                Item::Union(item) => (&item.ident, item.fields.named.len()),
                Item::Enum(item) => (&item.ident, 0),
                Item::Impl(item) => {
                    let is_method = |item: &&ImplItem| matches!(item, ImplItem::Fn(_));
                    if let Some(name) = named(&item.self_ty) {
                        let methods = item.items.iter().filter(is_method).count();
                        self.methods.push((module.to_vec(), name, methods));
                    }
                    continue;
                }
                Item::Mod(item) if !is_test(&item.attrs) => {
                    let inside = [module, &[item.ident.to_string()]].concat();
                    self.items(item.content.as_ref().map_or(&[], |content| &content.1), &inside);
                    continue;
                }
                _ => continue,
            };
            self.sizes.entry(key(module, &name.to_string())).or_default().fields += fields;
            match item {
                Item::Struct(item) => {
                    for field in &item.fields {
                        let types = names(&field.ty);
                        field.ident.iter().for_each(|name| self.add_field(&item.ident, name, types.clone()));
                    }
                }
                Item::Enum(item) => {
                    item.variants.iter().for_each(|variant| {
                        self.add_field(&item.ident, &variant.ident, Vec::new());
                    });
                }
                _ => {}
            }
        }
    }
}

fn key(module: &[String], name: &str) -> String {
    module.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("::")
}

/// The last part of a type's path.
fn named(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        Type::Reference(reference) => named(&reference.elem),
        _ => None,
    }
}

/// Whether an item is compiled for tests only: `test` is a word of its `cfg`.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let text = list.tokens.to_string();
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "test")
    })
}

/// The names that a type is made of.
fn names(of: &Type) -> Vec<String> {
    match of {
        Type::Path(path) => path.path.segments.iter().fold(Vec::new(), |mut all, segment| {
            all.push(segment.ident.to_string());
            if let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments {
                for argument in &arguments.args {
                    if let syn::GenericArgument::Type(inner) = argument {
                        all.extend(names(inner));
                    }
                }
            }
            all
        }),
        Type::Reference(reference) => names(&reference.elem),
        Type::Array(array) => names(&array.elem),
        Type::Slice(slice) => names(&slice.elem),
        Type::Tuple(tuple) => tuple.elems.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}
