//! Which task.

use steadfast_core::CallContext;

/// Which task: by its name and, where several tenants share one guard, whose it is. Two tenants'
/// tasks of one name are two tasks.
///
/// A name alone, and a pair of tenant and name, will do wherever one is wanted:
///
/// ```
/// use steadfast_guard::SafetyGuard;
///
/// let guard = SafetyGuard::default();
/// assert!(!guard.extend("task 7"), "nobody knows it");
/// assert!(!guard.extend(("acme", "task 7")), "nor of that tenant");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskId<'a> {
    /// Whose it is, when that is known.
    pub tenant: Option<&'a str>,
    /// The task, or the session of which each turn of the user is one.
    pub name: &'a str,
}

impl<'a> TaskId<'a> {
    /// The task that a call with this context belongs to: the one it names, else its session.
    pub fn of(context: &'a CallContext) -> Option<Self> {
        let name = context.task().or_else(|| context.session())?;
        Some(Self { tenant: context.tenant(), name })
    }
}

impl<'a> From<&'a str> for TaskId<'a> {
    fn from(name: &'a str) -> Self {
        Self { tenant: None, name }
    }
}

impl<'a> From<&'a String> for TaskId<'a> {
    fn from(name: &'a String) -> Self {
        Self::from(name.as_str())
    }
}

impl<'a> From<(&'a str, &'a str)> for TaskId<'a> {
    fn from((tenant, name): (&'a str, &'a str)) -> Self {
        Self { tenant: Some(tenant), name }
    }
}
