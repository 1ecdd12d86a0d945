//! `/v1/coupons/{coupon}/customers`: how often customers have used a coupon, for a help desk.

use super::api::{ApiHandle, FilterHandle};
use super::call::{Call, LookUpCustomers};
use super::codes::USES_LOOKED_UP_MAX;
use super::items::ORDER;
use super::redemptions::RedemptionResponse;
use super::request::json::{self, Faults, JsonText};
use super::response::success::{self, ListParts};
use super::response::{Code, HandlerResult, Problem};
use crate::budget::BudgetShare;
use axum::extract::{Path, Request};
use cuckood_filter::{Digest, Mode};
use cuckood_state::domain::Kind;
use cuckood_state::domain::redemption::CUSTOMER_BYTES_MAX;
use cuckood_state::{CustomerUses, FilterView, LookUpScan};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Customers.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"customers": ["c-7"]}))]
struct CustomerList<'a> {
    /// Used exactly as given, 1 to 512 bytes each.
    #[serde(
        borrow,
        deserialize_with = "json::list::<{ USES_LOOKED_UP_MAX + 1 }, _, _>"
    )]
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 1_000)]
    customers: Vec<JsonText<'a>>,
}

/// A customer's uses of a coupon.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"taken": 0, "redemptions": []}))]
struct CustomerLookup {
    /// Held and redeemed uses. With `per_customer`, those whose redemption is past its retention, or was cancelled with `release` `false`,
    /// count, too.
    taken: u64,
    /// Up to 64 held or redeemed redemptions, the latest first. If a customer has more than 64 redemptions, those among the latest 100 000
    /// changes of the coupon.
    #[schema(max_items = 64)]
    redemptions: Vec<RedemptionResponse>,
}

impl From<CustomerUses> for CustomerLookup {
    fn from(found: CustomerUses) -> Self {
        let redemptions = found.redemptions.into_iter();
        Self {
            taken: found.taken,
            redemptions: redemptions.map(RedemptionResponse::from).collect(),
        }
    }
}

/// The results of a lookup.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"customers": [{"taken": 0, "redemptions": []}]}))]
struct CustomerLookups {
    /// In the order of the request.
    customers: Vec<CustomerLookup>,
}

/// Look up customers, for a help desk
///
/// Shows the uses of each customer, regardless of the window. A customer without any counts as an invalid code.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/customers/lookup",
    operation_id = "look_up_customers",
    tag = "redemptions",
    request_body = CustomerList<'_>,
    responses(
        (status = 200, description = ORDER, body = CustomerLookups),
        (status = 409, description = "`requires-strict-mode`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn look_up(
    call: Call<LookUpCustomers>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let view = call.filter(Kind::Coupon, &name)?;
    let guesser = call.guesser(&view, &request)?;
    let body = call.body(request).await?;
    let CustomerList { customers } = json::parse(body.as_ref())?;
    if view.spec.mode == Mode::Compact {
        return Err(Code::RequiresStrictMode.into());
    }
    json::check_length("customers", customers.len(), USES_LOOKED_UP_MAX)?;
    let mut faults = Faults::default();
    let mut digests = Vec::with_capacity(customers.len());
    for (index, customer) in customers.iter().enumerate() {
        let customer: &str = customer.as_ref();
        if !(1..=CUSTOMER_BYTES_MAX).contains(&customer.len()) {
            let detail = format!("expected a string of 1 to {CUSTOMER_BYTES_MAX} bytes");
            faults.note(|| format!("/customers/{index}"), detail);
        }
        digests.push(view.customer_digest(customer));
    }
    faults.check()?;
    let memory = call.reserve(size_of_val(&digests[..]) as u64)?;
    let guesses = guesser.take(digests.len())?;
    guesses.settle(view.absent_customers(&digests));
    let empty = CustomerLookups {
        customers: Vec::new(),
    };
    let parts = UseParts::new(call.api, &view, digests, memory, |view, part, scan| {
        let found = view.look_up_customers(part, scan);
        found.into_iter().map(CustomerLookup::from).collect()
    });
    success::list(&empty, parts).await
}

/// Codes or customers that are looked up together: each may have as many redemptions as a lookup lists.
const LOOKED_UP: usize = 4;

/// The uses of codes or customers, which are read while they are sent.
pub(super) struct UseParts<T> {
    api: ApiHandle,
    coupon: FilterHandle,
    digests: Vec<Digest>,
    next: usize,
    scan: LookUpScan,
    find: fn(&FilterView, &[Digest], &mut LookUpScan) -> Vec<T>,
    /// Of the digests.
    _memory: BudgetShare,
}

impl<T> UseParts<T> {
    pub(super) fn new(
        api: ApiHandle,
        view: &Arc<FilterView>,
        digests: Vec<Digest>,
        memory: BudgetShare,
        find: fn(&FilterView, &[Digest], &mut LookUpScan) -> Vec<T>,
    ) -> Self {
        let scan = LookUpScan::at(api.engine.now());
        Self {
            coupon: FilterHandle::of(view),
            api,
            digests,
            next: 0,
            scan,
            find,
            _memory: memory,
        }
    }
}

impl<T: Serialize + 'static> ListParts for UseParts<T> {
    type Entry = T;

    fn read(&mut self) -> Result<Option<Vec<T>>, Problem> {
        let rest = &self.digests[self.next..];
        if rest.is_empty() {
            return Ok(None);
        }
        let part = &rest[..rest.len().min(LOOKED_UP)];
        let view = self.coupon.view(&self.api)?;
        self.next += part.len();
        Ok(Some((self.find)(&view, part, &mut self.scan)))
    }

    fn next_cursor(&self) -> Option<String> {
        None
    }
}
