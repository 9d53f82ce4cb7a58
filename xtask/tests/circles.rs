//! Circles of files: files of one crate that use each other, so that none of them can be understood or changed alone.
//!
//! A file uses the file that *defines* what it names: a name that a module re-exports counts as a use of the file behind it. Tests do not count.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// The most files in a circle.
const FILES_MAX: usize = 5;

/// Larger circles, with their sizes: the name of the crate, and the file of the circle that comes first. None may grow, and one that becomes smaller is
/// written down so.
const LARGER: [(&str, &str, usize); 1] = [
    // The loop of a worker, and its services: a file each, with the loop's state.
    ("worker", "incarnation", 8),
];

/// The path of a module, or of a name in it, from the crate's root.
type ModulePath = Vec<String>;

/// What a file imports: the path as it is written, the name that it gets here, and whether other files see that name.
struct Import {
    path: ModulePath,
    name: String,
    is_public: bool,
}

/// The imports of a file, and the paths in its code.
#[derive(Default)]
struct Names {
    imports: Vec<Import>,
    paths: Vec<ModulePath>,
}

impl Names {
    fn import(&mut self, prefix: &ModulePath, tree: &syn::UseTree, is_public: bool) {
        let with = |ident: &syn::Ident| prefix.iter().cloned().chain([ident.to_string()]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.import(&with(&path.ident), &path.tree, is_public),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let name = prefix.last().cloned().unwrap_or_default();
                self.imports.push(Import { path: prefix.clone(), name, is_public });
            }
            syn::UseTree::Name(name) => {
                self.imports.push(Import {
                    path: with(&name.ident),
                    name: name.ident.to_string(),
                    is_public,
                });
            }
            syn::UseTree::Rename(name) => {
                self.imports.push(Import {
                    path: with(&name.ident),
                    name: name.rename.to_string(),
                    is_public,
                });
            }
            // Which names it stands for is not known here: the file itself is used.
            syn::UseTree::Glob(_) => self.paths.push(prefix.clone()),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(prefix, tree, is_public));
            }
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let arguments = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && arguments.is_ok_and(|arguments| arguments == "test")
    })
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Mod(module) if is_test(&module.attrs) => {}
            syn::Item::Fn(function) if is_test(&function.attrs) => {}
            syn::Item::Use(item) => {
                let is_public = !matches!(item.vis, syn::Visibility::Inherited);
                self.import(&Vec::new(), &item.tree, is_public);
            }
            item => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    /// The paths in a macro's arguments, which are not parsed: words with `::` between them.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let text = call.tokens.to_string().replace(" :: ", "::");
        let words = text.split(|char: char| !(char.is_alphanumeric() || char == '_' || char == ':'));
        let paths = words.filter(|word| word.contains("::"));
        self.paths.extend(paths.map(|path| path.split("::").map(str::to_owned).collect()));
        visit::visit_macro(self, call);
    }
}

/// The modules of a crate that are files, by their paths.
struct Crate(BTreeMap<ModulePath, Names>);

impl Crate {
    fn read(source: &Path) -> Crate {
        let mut files = Vec::new();
        collect(source, &mut files);
        let mut modules = BTreeMap::new();
        for file in files {
            let relative = file.strip_prefix(source).unwrap().with_extension("");
            let mut path: ModulePath =
                relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if path.iter().any(|part| part.contains("test")) {
                continue;
            }
            if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                path.pop();
            }
            let mut names = Names::default();
            names.visit_file(&syn::parse_file(&std::fs::read_to_string(&file).unwrap()).unwrap());
            modules.insert(path, names);
        }
        Crate(modules)
    }

    /// The path from the crate's root of a path in the code of `module`; `None` if it leads to another crate.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let mut base = module.clone();
        match first.as_str() {
            "crate" => return Some(rest.to_vec()),
            "self" => return Some([base, rest.to_vec()].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                base.truncate(base.len().saturating_sub(ups));
                return Some([base, path[ups..].to_vec()].concat());
            }
            _ => base.push(first.clone()),
        }
        self.0.contains_key(&base).then(|| [base, rest.to_vec()].concat())
    }

    /// The file that defines what a path from the root names.
    fn defining(&self, path: &ModulePath, depth: usize) -> ModulePath {
        let known = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length])).unwrap_or(0);
        let (module, rest) = (path[..known].to_vec(), &path[known..]);
        let (Some(name), true) = (rest.first(), depth < 12) else { return module };
        let imported =
            self.0.get(&module).into_iter().flat_map(|names| &names.imports).find(|it| it.name == *name);
        let behind = imported.and_then(|import| self.absolute(&module, &import.path));
        match behind {
            Some(behind) if behind != *path => {
                self.defining(&[behind, rest[1..].to_vec()].concat(), depth + 1)
            }
            _ => module,
        }
    }

    /// The files that each file uses.
    fn uses(&self) -> BTreeMap<&ModulePath, BTreeSet<ModulePath>> {
        let of = |(module, names): (_, &Names)| {
            let imported = |path: &ModulePath| {
                let import = names.imports.iter().find(|import| Some(&import.name) == path.first())?;
                self.absolute(module, &[import.path.clone(), path[1..].to_vec()].concat())
            };
            // A re-export alone is no use, and neither is the import of a module: what is named through it is.
            let imports = names.imports.iter().filter(|import| !import.is_public);
            let imports = imports.filter_map(|import| self.absolute(module, &import.path));
            let imports = imports.filter(|path| !self.0.contains_key(path));
            let paths = names.paths.iter().filter(|path| path.len() > 1);
            let paths = paths.filter_map(|path| imported(path).or_else(|| self.absolute(module, path)));
            let used = imports.chain(paths).map(|path| self.defining(&path, 0));
            let used: BTreeSet<ModulePath> = used.filter(|used| used != module).collect();
            (module, used)
        };
        self.0.iter().map(of).collect()
    }

    /// Groups of files that use each other, each in the order of their names.
    fn circles(&self) -> Vec<Vec<String>> {
        let uses = self.uses();
        let reached = |from: &ModulePath| {
            let mut reached = BTreeSet::new();
            let mut next: Vec<&ModulePath> = uses[from].iter().collect();
            while let Some(module) = next.pop() {
                if reached.insert(module.clone()) {
                    next.extend(&uses[module]);
                }
            }
            reached
        };
        let reach: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
            uses.keys().map(|module| (*module, reached(module))).collect();
        let circle = |module: &ModulePath| -> Vec<String> {
            let mutual = reach[module].iter().filter(|other| reach[*other].contains(module));
            mutual.map(|path| if path.is_empty() { "lib".to_owned() } else { path.join("::") }).collect()
        };
        let circles: BTreeSet<Vec<String>> = reach.keys().map(|module| circle(module)).collect();
        circles.into_iter().filter(|circle| circle.len() > 1).collect()
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn files_use_each_other_in_small_circles_only() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates");
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        for circle in Crate::read(&path.join("src")).circles() {
            if circle.len() > FILES_MAX {
                found.insert((name.clone(), circle[0].clone()), circle);
            }
        }
    }
    let sizes: BTreeMap<(String, String), usize> =
        found.iter().map(|(at, circle)| (at.clone(), circle.len())).collect();
    let known: BTreeMap<(String, String), usize> =
        LARGER.iter().map(|(name, first, size)| (((*name).to_owned(), (*first).to_owned()), *size)).collect();
    assert_eq!(sizes, known, "found: {found:#?}");
}

#[test]
fn a_circle_is_found_through_a_re_export_and_a_macro() {
    let folder = std::env::temp_dir().join(format!("turnwise-circles-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("b")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write("lib.rs", "mod a; mod b; mod c; mod d; pub use b::inner::Thing;");
    write("a.rs", "use crate::Thing; pub struct A(Thing);");
    write("b/mod.rs", "pub mod inner;");
    write("b/inner.rs", "pub struct Thing; pub fn f() { println!(\"{}\", crate::c::text()); }");
    write("c.rs", "use super::a; pub fn text() -> String { a::A::name() }");
    write("d.rs", "use crate::a::A; #[cfg(test)] mod tests { use crate::d; }");
    let circles = Crate::read(&folder).circles();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(circles, [["a", "b::inner", "c"].map(str::to_owned).to_vec()]);
}
