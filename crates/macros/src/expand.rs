//! From the function to the handler.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, FnArg, ItemFn, ReturnType, Type};

use crate::settings::TaskSettings;

pub(crate) fn expand_task(
    attribute_arguments: TokenStream,
    function: TokenStream,
) -> syn::Result<TokenStream> {
    let settings = TaskSettings::parse(attribute_arguments)?;
    let function: ItemFn = syn::parse2(function)?;
    let (payload, returned) = payload_and_return_type(&function)?;
    let name = &function.sig.ident;
    let visibility = &function.vis;
    let docs: Vec<&Attribute> =
        function.attrs.iter().filter(|attribute| attribute.path().is_ident("doc")).collect();
    let kind = settings.kind.clone().unwrap_or_else(|| name.to_string());
    let config = kind_config_tokens(&settings);
    Ok(quote! {
        #(#docs)*
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, Default)]
        #visibility struct #name;

        impl #name {
            /// A task for this handler.
            #[allow(dead_code)]
            // A bound on a type that is known is refused where it does not hold. With a lifetime
            // it is asked only of who calls, so a payload need not be one that can be written.
            #visibility fn task(payload: &#payload) -> ::tidegate_engine::Task
            where
                for<'a> &'a #payload: ::tidegate_engine::private::Serialize,
            {
                ::tidegate_engine::Task::new(
                    <Self as ::tidegate_engine::Handler>::KIND,
                    &payload,
                )
            }
        }

        impl ::tidegate_engine::Handler for #name {
            const KIND: &'static str = #kind;
            type Payload = #payload;
            type Output = <#returned as ::tidegate_engine::IntoResult>::Output;

            fn config() -> ::tidegate_engine::KindConfig {
                #config
            }

            async fn run(
                &self,
                context: ::tidegate_engine::Context,
                payload: Self::Payload,
            ) -> ::core::result::Result<Self::Output, ::tidegate_engine::Failure> {
                #function
                ::tidegate_engine::IntoResult::into_result(#name(context, payload).await)
            }
        }
    })
}

/// The type of the payload and of what is returned.
fn payload_and_return_type(function: &ItemFn) -> syn::Result<(&Type, &Type)> {
    let signature = &function.sig;
    let wrong = |text| Err(syn::Error::new_spanned(signature, text));
    if signature.asyncness.is_none() {
        return wrong("a handler is an async fn");
    }
    if !signature.generics.params.is_empty() {
        return wrong("a handler has no generic parameters: its kind names one payload");
    }
    let mut inputs = signature.inputs.iter();
    let (Some(FnArg::Typed(_)), Some(FnArg::Typed(payload)), None) =
        (inputs.next(), inputs.next(), inputs.next())
    else {
        return wrong("a handler takes two arguments: the Context and the payload");
    };
    let ReturnType::Type(_, returned) = &signature.output else {
        return wrong("a handler returns a Result");
    };
    Ok((&payload.ty, returned))
}

fn kind_config_tokens(settings: &TaskSettings) -> TokenStream {
    let mut config = quote!(::tidegate_engine::KindConfig::new(Self::KIND));
    for (name, number) in &settings.numeric_settings {
        let method = format_ident!("{name}");
        config.extend(quote!(.#method(#number)));
    }
    if let Some(queue) = &settings.queue {
        config.extend(quote!(.queue(#queue)));
    }
    if let Some(ms) = settings.timeout_ms {
        config.extend(quote!(.timeout(::core::time::Duration::from_millis(#ms))));
    }
    if let (Some(start_ms), Some(end_ms)) = (settings.window_start_ms, settings.window_end_ms) {
        config.extend(quote! {
            .day_window(::tidegate_engine::DayWindow { start_ms: #start_ms, end_ms: #end_ms })
        });
    }
    config
}
