//! Measures the lengths of functions.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::File;

/// A function, from its signature to its closing brace.
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// Returns every function of a file that has a body, including functions in modules, traits and functions.
pub fn of(file: &File) -> Vec<Function> {
    let parsed = syn::parse_file(&file.text).unwrap_or_else(|error| panic!("{}: {error}", file.path));
    let mut found = Found(Vec::new());
    found.visit_file(&parsed);
    found.0
}

struct Found(Vec<Function>);

impl Found {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let (line, end) = (signature.span().start().line, body.span().end().line);
        self.0.push(Function { name: signature.ident.to_string(), line, lines: end - line + 1 });
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}
