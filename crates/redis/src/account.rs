//! Draws and grants, as numbers of a script.

use steadfast_core::{
    Spend, SpendTotals, SpendWindow,
    shared::{AccountDraw, AccountGrant, ShortCap},
};

/// More than anything costs: the store counts in doubles, which are exact up to here.
const MOST: u64 = 1 << 53;

/// What the script reads of a draw, in its order.
pub(crate) fn numbers(draw: &AccountDraw) -> [u64; 26] {
    let caps = &draw.caps;
    let known = &draw.known;
    let totals = &known.totals;
    let [(ht, hc), (dt, dc), (mt, mc)] = [caps.hour, caps.day, caps.month].map(pair);
    let [spent, granted, needed, wanted] =
        [draw.spent, draw.granted, draw.needed, draw.wanted].map(pair);
    let [hour, day, month] = [totals.hour, totals.day, totals.month].map(pair);
    let reported = pair(known.reported);
    [
        ht,
        hc,
        dt,
        dc,
        mt,
        mc,
        draw.life,
        draw.number,
        spent.0,
        spent.1,
        granted.0,
        granted.1,
        needed.0,
        needed.1,
        wanted.0,
        wanted.1,
        known.since_ms,
        hour.0,
        hour.1,
        day.0,
        day.1,
        month.0,
        month.1,
        reported.0,
        reported.1,
        u64::from(draw.reset),
    ]
}

/// What the script answers; `None` where that is something else.
pub(crate) fn grant(row: &[i64]) -> Option<AccountGrant> {
    let &[gt, gc, since, ht, hc, dt, dc, mt, mc, lt, lc, is_short, window, is_cost, missing, frees] =
        row
    else {
        return None;
    };
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let spend = |tokens, cost| Spend::new(number(tokens), number(cost));
    let mut totals = SpendTotals::default();
    (totals.hour, totals.day, totals.month) = (spend(ht, hc), spend(dt, dc), spend(mt, mc));
    totals.held = spend(lt, lc);
    let window = *SpendWindow::ALL.get(usize::try_from(window).ok()?)?;
    let frees = u64::try_from(frees).ok().map(std::time::Duration::from_secs);
    let short = ShortCap::new(window, is_cost != 0, number(missing), frees);
    let short = (is_short != 0).then_some(short);
    Some(AccountGrant::new(spend(gt, gc), number(since), totals, short))
}

fn pair(spend: Spend) -> (u64, u64) {
    (spend.tokens.min(MOST), spend.cost.min(MOST))
}
