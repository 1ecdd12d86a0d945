//! Examines the first line of an upload: a header in a text becomes an item, and an item in place of the CSV header is lost.

use cuckood_state::domain::{ITEM_BYTES_MAX, ImportWarning};

/// Number of items that are compared with the first line.
const COMPARED_MAX: u64 = 1_000;

/// Fewer items do not show how items differ from the first line.
const COMPARED_MIN: u64 = 3;

/// The shortest word of capitals that may be a code rather than the name of a column.
const CODE_CHARS_MIN: usize = 6;

/// The longest name of a column, in characters.
const NAME_CHARS_MAX: usize = 40;

/// Usual names of columns, in lower case and without separators.
const NAMES: &[&str] = &[
    "account",
    "accountid",
    "code",
    "codes",
    "contactid",
    "coupon",
    "couponcode",
    "coupons",
    "customer",
    "customerid",
    "customers",
    "deviceid",
    "discountcode",
    "email",
    "emailaddress",
    "giftcode",
    "guid",
    "id",
    "ids",
    "item",
    "items",
    "member",
    "memberid",
    "members",
    "mobile",
    "msisdn",
    "name",
    "phone",
    "phonenumber",
    "promocode",
    "promotioncode",
    "sku",
    "subscriberid",
    "token",
    "user",
    "userid",
    "userids",
    "username",
    "users",
    "uuid",
    "voucher",
    "vouchercode",
    "vouchers",
    "gutschein",
    "gutscheincode",
    "kunde",
    "kundennr",
    "kundennummer",
    "nutzer",
    "代码",
    "会员",
    "会员id",
    "优惠券",
    "优惠码",
    "兑换码",
    "券码",
    "客户",
    "手机",
    "手机号",
    "用户",
    "用户id",
    "编号",
    "邮箱",
];

/// The first line of an upload, compared with the items after it.
pub(super) struct FirstLine {
    line: String,
    /// Whether it was read as the header of the only column.
    is_header: bool,
    compared: u64,
    /// Number of items with a digit or an `@`.
    with_digits: u64,
    /// Number of items of the same shape.
    of_same_shape: u64,
}

impl FirstLine {
    /// A first line that is an item.
    pub(super) fn item(line: &str) -> Self {
        Self {
            line: line.to_owned(),
            is_header: false,
            compared: 0,
            with_digits: 0,
            of_same_shape: 0,
        }
    }

    /// A first line that is the header.
    pub(super) fn header(line: &str) -> Self {
        Self {
            is_header: true,
            ..Self::item(if line.len() <= ITEM_BYTES_MAX {
                line
            } else {
                ""
            })
        }
    }

    /// Compares a further item with it.
    pub(super) fn compare(&mut self, item: &str) {
        if self.compared == COMPARED_MAX {
            return;
        }
        self.compared += 1;
        self.with_digits += u64::from(has_digits(item));
        self.of_same_shape += u64::from(have_same_shape(&self.line, item));
    }

    /// The warning, if the line looks like what it is not.
    pub(super) fn warning(&self) -> Option<ImportWarning> {
        match self.is_header {
            true => self
                .looks_like_item()
                .then_some(ImportWarning::ItemInHeader),
            false => self
                .looks_like_header()
                .then_some(ImportWarning::HeaderInText),
        }
    }

    fn looks_like_header(&self) -> bool {
        let is_word = |c: char| c.is_alphabetic() || matches!(c, ' ' | '_' | '-');
        let is_name = self.line.chars().all(is_word) && self.line.chars().count() <= NAME_CHARS_MAX;
        let differs = self.compared >= COMPARED_MIN && self.with_digits == self.compared;
        is_usual_name(&self.line) || is_name && differs
    }

    fn looks_like_item(&self) -> bool {
        let line = self.line.trim();
        if line.is_empty() || is_usual_name(line) {
            return false;
        }
        let is_address_or_number = line.contains('@') || line.chars().all(|c| c.is_ascii_digit());
        let has_shape = 10 * self.of_same_shape >= 9 * self.compared;
        let is_code =
            line.chars().count() >= CODE_CHARS_MIN && !line.chars().any(char::is_lowercase);
        is_address_or_number
            || has_shape && (has_digits(line) || is_code && self.compared >= COMPARED_MIN)
    }
}

fn is_usual_name(line: &str) -> bool {
    let name: String = line
        .chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect();
    NAMES.contains(&name.as_str())
}

fn has_digits(line: &str) -> bool {
    line.chars().any(|c| c == '@' || c.is_numeric())
}

/// Whether two lines have letters and digits at the same places, or runs of the same kinds.
fn have_same_shape(a: &str, b: &str) -> bool {
    let place = |c: char| if c.is_alphanumeric() { 'x' } else { c };
    let kind = |c: char| match c {
        _ if c.is_numeric() => '9',
        _ if c.is_lowercase() => 'a',
        _ if c.is_alphabetic() => 'A',
        _ => c,
    };
    let runs = |line: &str| {
        let mut runs: Vec<char> = line.chars().map(kind).collect();
        runs.dedup();
        runs
    };
    a.chars().map(place).eq(b.chars().map(place)) || runs(a) == runs(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(mut first: FirstLine, items: &[&str]) -> Option<ImportWarning> {
        items.iter().for_each(|item| first.compare(item));
        first.warning()
    }

    #[test]
    fn header_in_text_returns_warning() {
        for (line, items) in [
            ("code", &["ALPHA", "BETA"][..]),
            ("Coupon Code", &["A-1"]),
            ("\"user_id\"", &[]),
            ("用户", &["张三"]),
            ("Rabattcode", &["A-1", "A-2", "A-3"]),
            (
                "adresse",
                &["ann@example.com", "bob@example.com", "cy@example.com"],
            ),
        ] {
            assert_eq!(
                warning(FirstLine::item(line), items),
                Some(ImportWarning::HeaderInText),
                "{line}"
            );
        }
        for (line, items) in [
            ("u1", &["u2", "u3", "u4"][..]),
            ("ann", &["bob", "cy", "u4"]),
            ("SPRING", &["A-1", "A-2"]),
            ("K7Q2-9FXM", &["BCDF-GHJK", "2222-3333", "Z9Z9-Z9Z9"]),
            ("ann@example.com", &["bob7@example.com"; 5]),
        ] {
            assert_eq!(warning(FirstLine::item(line), items), None, "{line}");
        }
    }

    #[test]
    fn item_in_header_returns_warning() {
        for (line, items) in [
            ("SPRING-0001", &["SPRING-0002", "SPRING-0003"][..]),
            ("u1", &["u2", "u10", "u3"]),
            ("K7Q2-9FXM", &["BCDF-GHJK", "2222-3333", "Z9Z9-Z9Z9"]),
            ("BCDFGHJK", &["9CDFGH2K", "BCDF2HJK", "ZZZZ9999"]),
            ("ann@example.com", &["someone.else@example.org"]),
            ("00012345", &[]),
        ] {
            assert_eq!(
                warning(FirstLine::header(line), items),
                Some(ImportWarning::ItemInHeader),
                "{line}"
            );
        }
        for (line, items) in [
            ("code", &["AAAA", "BBBB", "CCCC"][..]),
            ("Gutschein 2026", &["A-1", "A-2"]),
            ("promotion", &["summerfun", "winterfun", "springfun"]),
            ("", &["u1"]),
        ] {
            assert_eq!(warning(FirstLine::header(line), items), None, "{line}");
        }
    }
}
