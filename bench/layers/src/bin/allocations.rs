//! Counts the allocations of every case. Separate from the timed binary, because counting takes time.

use steadfast_bench_layers::report::count;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    print!("{}", count(&runtime, |run| allocation_counter::measure(run).count_total));
    Ok(())
}
