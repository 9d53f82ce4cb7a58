//! Types of answers.

/// Defines types of answers. A member that is an `Option` is left out if it has no value; it is never null.
macro_rules! answers {
    ($($(#[$($about:tt)*])* pub struct $name:ident { $($members:tt)* })+) => {
        $($crate::answer::answer! { [$(#[$($about)*])* $name] [] $($members)* })+
    };
}

/// Defines one of [`answers`]: its members go to the second list, one after the other.
macro_rules! answer {
    ([$(#[$($about:tt)*])* $name:ident] [$($members:tt)*]) => {
        #[derive(Debug, Clone, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        $(#[$($about)*])*
        pub struct $name {
            $($members)*
        }
    };
    ($head:tt [$($members:tt)*] $(#[$($of:tt)*])* pub $member:ident: Option<$value:ident>, $($rest:tt)*) => {
        $crate::answer::answer! { $head [
            $($members)*
            $(#[$($of)*])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(nullable = false)]
            pub $member: Option<$value>,
        ] $($rest)* }
    };
    // The schema of any JSON states no type, so null need not be excluded.
    ($head:tt [$($members:tt)*] $(#[$($of:tt)*])* pub $member:ident: Option<Box<RawValue>>, $($rest:tt)*) => {
        $crate::answer::answer! { $head [
            $($members)*
            $(#[$($of)*])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $member: Option<Box<RawValue>>,
        ] $($rest)* }
    };
    ($head:tt [$($members:tt)*] $(#[$($of:tt)*])* pub $member:ident: $value:ty, $($rest:tt)*) => {
        $crate::answer::answer! { $head [$($members)* $(#[$($of)*])* pub $member: $value,] $($rest)* }
    };
}
pub(crate) use {answer, answers};
