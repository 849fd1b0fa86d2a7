//! The pages that a transaction commits.

use std::borrow::Cow;

/// The image of a page, either as SQLite has written it or as this VFS has changed it.
pub type Image<'a> = Cow<'a, [u8]>;

/// The images of pages, sorted by page number.
#[derive(Default)]
pub struct Images<'a> {
    /// The image, if there is only one. One page is the most frequent case, and this field needs no
    /// allocation.
    one: Option<(u32, Image<'a>)>,
    any: Vec<(u32, Image<'a>)>,
}

impl<'a> Images<'a> {
    /// Makes the images that a commit writes: for each page, only its last image in `images`.
    pub fn last_of(images: impl IntoIterator<Item = (u32, Image<'a>)>) -> Self {
        let mut images = images.into_iter();
        let (first, second) = (images.next(), images.next());
        if second.is_none() {
            return Self { one: first, any: Vec::new() };
        }
        let mut any: Vec<_> = first.into_iter().chain(second).chain(images).collect();
        // The sort is stable, so several images of one page keep their order.
        any.sort_by_key(|(page, _)| *page);
        any.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
        Self { one: None, any }
    }

    fn all(&self) -> &[(u32, Image<'a>)] {
        self.one.as_ref().map_or(&self.any, std::slice::from_ref)
    }

    /// Returns all images, in a list to which more can be added.
    fn any(&mut self) -> &mut Vec<(u32, Image<'a>)> {
        self.any.extend(self.one.take());
        &mut self.any
    }

    fn place(&self, page: u32) -> Result<usize, usize> {
        self.all().binary_search_by_key(&page, |(page, _)| *page)
    }

    /// Returns the page's image.
    pub fn get(&self, page: u32) -> Option<&[u8]> {
        self.place(page).ok().map(|place| &*self.all()[place].1)
    }

    /// Returns the page's image, to be changed.
    pub fn get_mut(&mut self, page: u32) -> Option<&mut Vec<u8>> {
        let place = self.place(page).ok()?;
        self.any().get_mut(place).map(|(_, image)| image.to_mut())
    }

    pub fn contains(&self, page: u32) -> bool {
        self.place(page).is_ok()
    }

    /// Makes `image` the image of the page, in place of any image that the page has.
    pub fn insert(&mut self, page: u32, image: Vec<u8>) {
        match self.place(page) {
            Ok(place) => self.any()[place].1 = image.into(),
            Err(place) => self.any().insert(place, (page, image.into())),
        }
    }

    /// Does the same as [`Self::insert`], for many pages.
    pub fn extend(&mut self, images: impl IntoIterator<Item = (u32, Vec<u8>)>) {
        let new = images.into_iter().map(|(page, image)| (page, image.into()));
        *self = Self::last_of(std::mem::take(self.any()).into_iter().chain(new));
    }

    /// Removes the pages for which `stays` is false.
    pub fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        self.any().retain(|(page, _)| stays(*page));
    }

    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Returns the pages.
    pub fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.all().iter().map(|(page, _)| *page)
    }

    /// Returns the pages whose images are SQLite's own, and which this VFS has neither made nor changed.
    pub fn written(&self) -> impl Iterator<Item = u32> + '_ {
        let is_its = |image: &Image<'_>| matches!(image, Cow::Borrowed(_));
        self.all().iter().filter(move |(_, image)| is_its(image)).map(|(page, _)| *page)
    }

    /// Returns the pages with their images.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.all().iter().map(|(page, image)| (*page, &**image))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_its_last_image() {
        let written: [(u32, &[u8]); 5] = [(7, b"a"), (3, b"b"), (7, b"c"), (9, b"d"), (7, b"e")];
        let mut images = Images::last_of(written.map(|(page, image)| (page, Cow::Borrowed(image))));
        let all =
            |images: &Images<'_>| images.iter().map(|(page, image)| (page, image[0])).collect::<Vec<_>>();
        assert_eq!(all(&images), [(3, b'b'), (7, b'e'), (9, b'd')]);
        assert_eq!(images.written().collect::<Vec<_>>(), [3, 7, 9]);
        images.extend([(8, b"f".to_vec()), (3, b"g".to_vec())]);
        assert_eq!(images.written().collect::<Vec<_>>(), [7, 9]);
        images.insert(1, b"h".to_vec());
        images.insert(9, b"i".to_vec());
        images.get_mut(7).unwrap()[0] = b'j';
        assert_eq!(all(&images), [(1, b'h'), (3, b'g'), (7, b'j'), (8, b'f'), (9, b'i')]);
        images.retain(|page| page != 8);
        assert_eq!((images.get(8), images.contains(9), images.len()), (None, true, 4));
        assert_eq!(images.pages().collect::<Vec<_>>(), [1, 3, 7, 9]);
    }
}
